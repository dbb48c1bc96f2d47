/* The two inner loops that make a whole request at least twice as fast: the sum over a text's
   n-grams, and the choice among the languages of a script.

   Each function has a twin in Python with numpy, which says what it computes; the tests compare the
   two over many texts. Sums of weights are exact integers. Floating-point operations keep the
   twin's order, so a build must not contract them (-ffp-contract=off). */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __GNUC__
#define PREFETCH(place) __builtin_prefetch(place)
#else
#define PREFETCH(place)
#endif

#define VERSION 4 /* of what the functions take and give, as in `native` */
#define MOST_LANGUAGES 1024 /* of one script */

/* The multipliers of the rolling hashes and of their mixing, as in `features`. */
#define BASE 0x01000193u
#define MIX 0x9E3779B1u

static const uint32_t GRAM_SALTS[] = {0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F, 0x165667B1};
static const uint32_t WORD_SALT = 0x7F4A7C15, PAIR_SALT = 0x3C6EF372, PAIR = 0xB5297A4D;
static const uint32_t LETTER_SALTS[] = {0x51ED270B, 0x2545F491, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F};

typedef struct {
    const uint32_t *at;
    Py_ssize_t size;
} Codes;

static Codes
codes_of(const Py_buffer *buffer)
{
    return (Codes){buffer->buf, buffer->len / (Py_ssize_t)sizeof(uint32_t)};
}

static uint32_t
mixed(uint32_t hash)
{
    return (hash ^ hash >> 16) * MIX;
}

static void
release(Py_buffer *buffers, int count)
{
    for (int i = 0; i < count; i++) {
        PyBuffer_Release(&buffers[i]);
    }
}

static PyObject *
wrong_size(Py_buffer *buffers, int count)
{
    release(buffers, count);
    PyErr_SetString(PyExc_ValueError, "buffers of another size");
    return NULL;
}

/* A code point, `l` as `i`: see `features.folded`. */
static uint32_t
folded(uint32_t code)
{
    return code == 'l' ? 'i' : code;
}

/* At most six for each code point: four n-grams, and for every two a word and a pair. */
static Py_ssize_t
text_buckets(const uint8_t *in_words, Py_ssize_t known, Codes codes, int bits, uint32_t *buckets)
{
    const int shift = 32 - bits;
    const uint32_t first_word = (uint32_t)1 << bits;
    uint32_t word = 0, power = BASE, last = 0;
    Py_ssize_t count = 0, words = 0;
    int open = 0;
    for (Py_ssize_t i = 0; i < codes.size; i++) {
        uint32_t code = folded(codes.at[i]), rolled = code * BASE;
        for (Py_ssize_t n = 0; n < 4 && i + n + 1 < codes.size; n++) {
            rolled = rolled * BASE + folded(codes.at[i + n + 1]);
            buckets[count++] = mixed(rolled + GRAM_SALTS[n]) >> shift;
        }
        if ((Py_ssize_t)code < known && in_words[code]) {
            word += code * power;
            power *= BASE;
            open = 1;
        }
        else if (open) {
            buckets[count++] = first_word + (mixed(word + WORD_SALT) >> shift >> 1);
            if (words++) {
                uint32_t hash = last * PAIR + word + PAIR_SALT;
                buckets[count++] = first_word + (mixed(hash) >> shift >> 1);
            }
            last = word;
            word = 0;
            power = BASE;
            open = 0;
        }
    }
    return count;
}

static PyObject *
gram_sums(PyObject *module, PyObject *args)
{
    /* Which code points are part of words, the weights, one bit for each of these (all zero between
       calls, which hold the GIL), and the text. */
    enum { IN_WORDS, WEIGHTS, SEEN, TEXT, BUFFERS };
    Py_buffer given[BUFFERS];
    if (!PyArg_ParseTuple(args, "y*y*w*y*", &given[IN_WORDS], &given[WEIGHTS], &given[SEEN],
                          &given[TEXT])) {
        return NULL;
    }
    const int8_t *weights = given[WEIGHTS].buf;
    uint64_t *seen = given[SEEN].buf;
    Codes codes = codes_of(&given[TEXT]);
    Py_ssize_t half = 1; /* there are 3 * 2 ** (bits - 1) buckets */
    int bits = 1;
    while (bits < 30 && 3 * half < given[WEIGHTS].len) {
        half <<= 1;
        bits++;
    }
    if (3 * half != given[WEIGHTS].len || given[SEEN].len * 8 < given[WEIGHTS].len) {
        return wrong_size(given, BUFFERS);
    }
    uint32_t *buckets = PyMem_Malloc((size_t)codes.size * 6 * sizeof *buckets);
    if (buckets == NULL) {
        release(given, BUFFERS);
        return PyErr_NoMemory();
    }
    Py_ssize_t count =
        text_buckets(given[IN_WORDS].buf, given[IN_WORDS].len, codes, bits, buckets);
    Py_ssize_t total = 0, size = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t *place = &seen[buckets[i] >> 6], bit = (uint64_t)1 << (buckets[i] & 63);
        int is_new = (*place & bit) == 0;
        *place |= bit;
        size += is_new;
        total += is_new ? weights[buckets[i]] : 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        seen[buckets[i] >> 6] = 0;
    }
    PyMem_Free(buckets);
    release(given, BUFFERS);
    return Py_BuildValue("(nn)", total, size);
}

/* The buckets of all words and n-grams of 1 to 5 letters, at most six for each letter. */
static Py_ssize_t
letter_buckets(Codes letters, int shift, uint32_t *buckets)
{
    const uint32_t *at = letters.at;
    Py_ssize_t count = 0, end = 0, last = letters.size - 1;
    while (last > 0 && at[last] != ' ') {
        last--;
    }
    for (Py_ssize_t i = 0; i < letters.size; i++) {
        if (i == end && at[i] == ' ' && i < last) { /* a word follows */
            uint32_t power = BASE, word = 0;
            do {
                end++;
                word += at[end] * power;
                power *= BASE;
            } while (at[end] != ' ');
            buckets[count++] = mixed(word + WORD_SALT) >> shift;
        }
        uint32_t rolled = 0;
        for (Py_ssize_t n = 0; n < 5 && (i + n <= end || n == 0); n++) {
            rolled = n ? rolled * BASE + at[i + n] : at[i] * BASE;
            buckets[count++] = mixed(rolled + LETTER_SALTS[n]) >> shift;
        }
    }
    return count;
}

static void
add_up(const int8_t *weights, Py_ssize_t languages, const uint32_t *buckets, Py_ssize_t count,
       int32_t *totals)
{
    for (Py_ssize_t start = 0; start < count; start += 255) {
        int16_t part[MOST_LANGUAGES]; /* has room for the sum of 255 weights */
        memset(part, 0, (size_t)languages * sizeof *part);
        for (Py_ssize_t i = start; i < count && i < start + 255; i++) {
            const int8_t *row = weights + buckets[i] * languages;
            PREFETCH(weights + buckets[i + 8 < count ? i + 8 : i] * languages);
            for (Py_ssize_t j = 0; j < languages; j++) {
                part[j] = (int16_t)(part[j] + row[j]);
            }
        }
        for (Py_ssize_t j = 0; j < languages; j++) {
            totals[j] += part[j];
        }
    }
}

static PyObject *
best_language(PyObject *module, PyObject *args)
{
    /* The weights, the constants of the languages, and the letters; then how weights are scaled. */
    enum { WEIGHTS, BIAS, LETTERS, BUFFERS };
    Py_buffer given[BUFFERS];
    double scale, power, slope, intercept;
    if (!PyArg_ParseTuple(args, "y*y*y*dddd", &given[WEIGHTS], &given[BIAS], &given[LETTERS],
                          &scale, &power, &slope, &intercept)) {
        return NULL;
    }
    const double *bias = given[BIAS].buf;
    Codes letters = codes_of(&given[LETTERS]);
    Py_ssize_t languages = given[BIAS].len / (Py_ssize_t)sizeof *bias;
    Py_ssize_t rows = languages ? given[WEIGHTS].len / languages : 0;
    int shift = 32;
    for (Py_ssize_t row = rows; row > 1 && shift > 1; row >>= 1) {
        shift--;
    }
    if (languages < 1 || languages > MOST_LANGUAGES || shift == 32 || letters.size < 1 ||
        rows != (Py_ssize_t)1 << (32 - shift) || rows * languages != given[WEIGHTS].len) {
        return wrong_size(given, BUFFERS);
    }
    uint32_t *buckets = PyMem_Malloc((size_t)letters.size * 6 * sizeof *buckets);
    if (buckets == NULL) {
        release(given, BUFFERS);
        return PyErr_NoMemory();
    }
    Py_ssize_t count = letter_buckets(letters, shift, buckets), best = 0;
    int32_t totals[MOST_LANGUAGES] = {0};
    add_up(given[WEIGHTS].buf, languages, buckets, count, totals);
    PyMem_Free(buckets);
    double sharpness =
        scale * pow((double)count, -power) * exp(slope * log((double)count) + intercept);
    double logits[MOST_LANGUAGES], all = 0.0;
    for (Py_ssize_t j = 0; j < languages; j++) {
        logits[j] = (double)totals[j] * sharpness + bias[j];
        best = logits[j] > logits[best] ? j : best;
    }
    for (Py_ssize_t j = 0; j < languages; j++) {
        double less = logits[j] - logits[best];
        all += less > -40.0 ? exp(less) : 0.0;
    }
    release(given, BUFFERS);
    return Py_BuildValue("(nd)", best, 1.0 / all);
}

static PyMethodDef methods[] = {
    {"best_language", best_language, METH_VARARGS, "The twin of `ScriptModel.best`."},
    {"gram_sums", gram_sums, METH_VARARGS, "The twin of `SpamModel.gram_sums`."},
    {NULL, NULL, 0, NULL},
};

static int
module_exec(PyObject *module)
{
    return PyModule_AddIntConstant(module, "VERSION", VERSION);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "spamdetect.engine.speedups",
    .m_doc = "The engine's inner loops in C.",
    .m_methods = methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit_speedups(void)
{
    return PyModuleDef_Init(&module_def);
}
