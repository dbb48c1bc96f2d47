/* The classifier: its n-grams, its network, and the structure that it reads. */

#include "speedups.h"

#define GIL_FREE 8192 /* longer texts are read without the GIL */
#define MOST_COLUMNS 1024

static const uint32_t SALTS[] = {0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F, 0x165667B1};
static const uint32_t WORD_SALT = 0x7F4A7C15, PAIR_SALT = 0x3C6EF372, PAIR = 0xB5297A4D;

typedef struct {
    Py_ssize_t total, size;
} Sums;

/* At most six for each code point: four n-grams, and for every two a word and a pair. */
static Py_ssize_t
text_buckets(const uint8_t *roles, const Codes *codes, int bits, uint32_t *buckets)
{
    const Py_UCS4 *at = codes->at;
    const int shift = 32 - bits;
    const uint32_t first_word = (uint32_t)1 << bits;
    uint32_t word = 0, power = BASE, last = 0;
    Py_ssize_t count = 0, words = 0;
    int open = 0;
    for (Py_ssize_t i = 0; i < codes->size; i++) {
        uint32_t rolled = at[i] * BASE;
        for (Py_ssize_t n = 0; n < 4 && i + n + 1 < codes->size; n++) {
            rolled = rolled * BASE + at[i + n + 1];
            uint32_t hash = rolled + SALTS[n];
            buckets[count++] = ((hash ^ hash >> 16) * MIX) >> shift;
        }
        if (roles[at[i]] & WORD) {
            word += at[i] * power;
            power *= BASE;
            open = 1;
        }
        else if (open) {
            uint32_t hash = word + WORD_SALT;
            buckets[count++] = first_word + (((hash ^ hash >> 16) * MIX) >> shift >> 1);
            if (words++) {
                hash = last * PAIR + word + PAIR_SALT;
                buckets[count++] = first_word + (((hash ^ hash >> 16) * MIX) >> shift >> 1);
            }
            last = word;
            word = 0;
            power = BASE;
            open = 0;
        }
    }
    return count;
}

static Sums
sum_of_different(const int8_t *weights, const uint32_t *buckets, Py_ssize_t count, uint64_t *seen)
{
    Sums sums = {0, 0};
    for (Py_ssize_t i = 0; i < count; i++) {
        uint32_t bucket = buckets[i];
        uint64_t *place = &seen[bucket >> 6], bit = (uint64_t)1 << (bucket & 63);
        int is_new = (*place & bit) == 0;
        *place |= bit;
        sums.size += is_new;
        sums.total += is_new ? weights[bucket] : 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        seen[buckets[i] >> 6] = 0;
    }
    return sums;
}

FUNCTION(gram_sums)
{
    const uint8_t *roles;
    Arrays *weights;
    Codes codes;
    if (check_count(given, 3) < 0 || (roles = table_of(module, args[0], ROLES)) == NULL ||
        (weights = arrays_of(module, args[1], 1, -1, -1, -1)) == NULL) {
        return NULL;
    }
    int bits = 0;
    while (bits < 30 && (Py_ssize_t)3 << bits < weights->held[0].len) {
        bits++; /* there are 3 * 2 ** (bits - 1) buckets */
    }
    size_t places = (size_t)weights->held[0].len / 64 + 1;
    if ((Py_ssize_t)3 << bits != weights->held[0].len) {
        return wrong_size();
    }
    bits++;
    if (codes_read(&codes, args[2]) < 0) {
        return NULL;
    }
    PyObject *found = NULL;
    uint32_t few[6 * FEW], *buckets = few;
    uint64_t *seen = weights->seen;
    int is_long = codes.size > GIL_FREE;
    if (is_long || seen == NULL) {
        seen = PyMem_Calloc(places, sizeof *seen);
    }
    if (!is_long) {
        weights->seen = seen;
    }
    if (codes.size > FEW) {
        buckets = PyMem_New(uint32_t, (size_t)codes.size * 6);
    }
    if (seen == NULL || buckets == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    Sums sums;
    PyThreadState *thread = is_long ? PyEval_SaveThread() : NULL;
    for (Py_ssize_t i = 0; i < codes.size; i++) {
        codes.at[i] = codes.at[i] == 'l' ? 'i' : codes.at[i];
    }
    Py_ssize_t count = text_buckets(roles, &codes, bits, buckets);
    sums = sum_of_different(weights->held[0].buf, buckets, count, seen);
    if (is_long) {
        PyEval_RestoreThread(thread);
    }
    found = Py_BuildValue("(nn)", sums.total, sums.size);
done:
    if (is_long) {
        PyMem_Free(seen);
    }
    if (buckets != few) {
        PyMem_Free(buckets);
    }
    codes_free(&codes);
    return found;
}

/* The network and the structure. */

FUNCTION(scores)
{
    Arrays *network;
    if (check_count(given, 2) < 0 ||
        (network = arrays_of(module, args[0], 4, -1, -1, -1)) == NULL) {
        return NULL;
    }
    const int8_t *weights = network->held[0].buf;
    const double *scale = network->held[1].buf, *bias = network->held[2].buf;
    const double *output = network->held[3].buf;
    Py_ssize_t columns = network->held[1].len / (Py_ssize_t)sizeof(double);
    if (columns < 1 || columns > MOST_COLUMNS || network->held[2].len != network->held[1].len ||
        network->held[3].len != (columns - 1) * (Py_ssize_t)sizeof(double)) {
        return wrong_size();
    }
    if (!PyList_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "the traits must be a list");
        return NULL;
    }
    Py_ssize_t rows = network->held[0].len / columns, active = PyList_Size(args[1]);
    int32_t sums[MOST_COLUMNS] = {0};
    for (Py_ssize_t i = 0; i < active; i++) {
        Py_ssize_t row = PyLong_AsSsize_t(PyList_GetItem(args[1], i));
        if (row < 0 || row >= rows) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_IndexError, "no such trait");
            }
            return NULL;
        }
        for (Py_ssize_t j = 0; j < columns; j++) {
            sums[j] += weights[row * columns + j];
        }
    }
    double meaning = 0.0;
    for (Py_ssize_t j = 0; j < columns - 1; j++) {
        double reached = (double)sums[j] * scale[j] + bias[j];
        meaning += (reached > 0.0 ? reached : 0.0) * output[j];
    }
    double structural = (double)sums[columns - 1] * scale[columns - 1] + bias[columns - 1];
    return Py_BuildValue("(dd)", meaning, structural);
}

FUNCTION(features)
{
    Arrays *groups;
    if (check_count(given, 2) < 0 ||
        (groups = arrays_of(module, args[0], 2, -1, -1, -1)) == NULL) {
        return NULL;
    }
    if (!PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "the values must be a tuple");
        return NULL;
    }
    const double *edges = groups->held[0].buf;
    const int64_t *ends = groups->held[1].buf;
    Py_ssize_t count = PyTuple_Size(args[1]);
    Py_ssize_t all = groups->held[0].len / (Py_ssize_t)sizeof *edges;
    if (count * (Py_ssize_t)sizeof *ends != groups->held[1].len) {
        return wrong_size();
    }
    PyObject *found = PyList_New(count);
    Py_ssize_t edge = 0, feature = 0;
    for (Py_ssize_t group = 0; found != NULL && group < count; group++) {
        double value = PyFloat_AsDouble(PyTuple_GetItem(args[1], group));
        if (value == -1.0 && PyErr_Occurred()) {
            Py_CLEAR(found);
            break;
        }
        Py_ssize_t end = ends[group] < all ? (Py_ssize_t)ends[group] : all, on = feature;
        feature += end - edge + 1;
        for (; edge < end; edge++) {
            on += edges[edge] <= value;
        }
        PyObject *number = PyLong_FromSsize_t(on);
        if (number == NULL || PyList_SetItem(found, group, number) < 0) {
            Py_CLEAR(found);
        }
    }
    return found;
}

