/* The language detector. */

#include "speedups.h"

#include <math.h>

#ifdef __GNUC__
#define PREFETCH(place) __builtin_prefetch(place)
#else
#define PREFETCH(place)
#endif

#define LETTERS_READ 400
#define MOST_LANGUAGES 1024 /* of one script */

static const uint32_t SALTS[] = {0x51ED270B, 0x2545F491, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F};
static const uint32_t WORD_SALT = 0x7F4A7C15;

FUNCTION(first_letter)
{
    const uint8_t *script;
    Codes codes;
    if (check_count(given, 2) < 0 || (script = table_of(module, args[0], SCRIPT)) == NULL ||
        codes_read(&codes, args[1]) < 0) {
        return NULL;
    }
    Py_ssize_t i = 0;
    while (i < codes.size && script[codes.at[i]] == 0) {
        i++;
    }
    i = i < codes.size ? i : 0;
    codes_free(&codes);
    return PyLong_FromSsize_t(i);
}

FUNCTION(read_letters)
{
    const uint8_t *script;
    Arrays *scripts;
    Codes codes;
    if (check_count(given, 3) < 0 || (script = table_of(module, args[0], SCRIPT)) == NULL ||
        (scripts = arrays_of(module, args[1], 2, SCRIPTS, SCRIPTS, -1)) == NULL ||
        codes_read(&codes, args[2]) < 0) {
        return NULL;
    }
    Py_UCS4 letters[LETTERS_READ + 1] = {' '};
    Py_ssize_t count[256] = {0}, kept = 1, size = 0;
    int open = 0, main = 0;
    for (Py_ssize_t i = 0; i < codes.size; i++) {
        uint8_t found = script[codes.at[i]];
        count[found]++;
        if (kept < LETTERS_READ && (found || open)) {
            letters[kept++] = found ? codes.at[i] : ' ';
        }
        else if (found || open) {
            letters[LETTERS_READ] = ' '; /* something is cut off */
            kept = LETTERS_READ + 1;
        }
        open = found != 0;
    }
    codes_free(&codes);
    if (open) { /* the space that ends every text */
        letters[kept < LETTERS_READ ? kept : LETTERS_READ] = ' ';
        kept = kept < LETTERS_READ ? kept + 1 : LETTERS_READ + 1;
    }
    const uint8_t *counted_as = scripts->held[0].buf, *worth = scripts->held[1].buf;
    Py_ssize_t worths[256] = {0};
    for (int i = 0; i < SCRIPTS; i++) {
        worths[counted_as[i]] += count[i] * worth[i];
        size += count[i] * worth[i];
    }
    for (int i = 1; i < SCRIPTS; i++) {
        main = worths[i] > worths[main] ? i : main;
    }
    return Py_BuildValue("(y#in)", (char *)letters, kept * (Py_ssize_t)sizeof *letters, main, size);
}

/* The buckets of all words and n-grams of 1 to 5 letters, at most six for each letter. */
static Py_ssize_t
letter_buckets(const Py_UCS4 *letters, Py_ssize_t size, int shift, uint32_t *buckets)
{
    Py_ssize_t count = 0, end = 0, word_end = size - 1;
    while (word_end > 0 && letters[word_end] != ' ') {
        word_end--;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        if (i == end && letters[i] == ' ' && i < word_end) { /* a word follows */
            uint32_t power = BASE, word = 0;
            do {
                end++;
                word += letters[end] * power;
                power *= BASE;
            } while (letters[end] != ' ');
            uint32_t hash = word + WORD_SALT;
            buckets[count++] = ((hash ^ hash >> 16) * MIX) >> shift;
        }
        uint32_t rolled = 0;
        for (Py_ssize_t n = 0; n < 5 && (i + n <= end || n == 0); n++) {
            rolled = n ? rolled * BASE + letters[i + n] : letters[i] * BASE;
            uint32_t hash = rolled + SALTS[n];
            buckets[count++] = ((hash ^ hash >> 16) * MIX) >> shift;
        }
    }
    return count;
}

FUNCTION(best_language)
{
    Arrays *model;
    if (check_count(given, 2) < 0 ||
        (model = arrays_of(module, args[0], 3, -1, -1, 4 * sizeof(double))) == NULL) {
        return NULL;
    }
    const int8_t *weights = model->held[0].buf;
    const double *bias = model->held[1].buf, *number = model->held[2].buf;
    Py_ssize_t languages = model->held[1].len / (Py_ssize_t)sizeof(double);
    Py_ssize_t rows = languages ? model->held[0].len / languages : 0;
    int shift = 32;
    for (Py_ssize_t row = rows; row > 1 && shift > 1; row >>= 1) {
        shift--;
    }
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(args[1], &bytes, &length) < 0) {
        return NULL;
    }
    Py_ssize_t size = length / (Py_ssize_t)sizeof(Py_UCS4);
    if (languages < 1 || languages > MOST_LANGUAGES || shift == 32 ||
        rows != (Py_ssize_t)1 << (32 - shift) || rows * languages != model->held[0].len ||
        size < 1 || size > LETTERS_READ + 1) {
        return wrong_size();
    }
    Py_UCS4 letters[LETTERS_READ + 1];
    memcpy(letters, bytes, (size_t)size * sizeof *letters);
    uint32_t buckets[6 * (LETTERS_READ + 1)];
    Py_ssize_t count = letter_buckets(letters, size, shift, buckets);

    int32_t totals[MOST_LANGUAGES] = {0};
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
    double sharpness = number[0] * pow((double)count, -number[1]) *
                       exp(number[2] * log((double)count) + number[3]);
    double logits[MOST_LANGUAGES], all = 0.0;
    Py_ssize_t best = 0;
    for (Py_ssize_t j = 0; j < languages; j++) {
        logits[j] = (double)totals[j] * sharpness + bias[j];
        best = logits[j] > logits[best] ? j : best;
    }
    for (Py_ssize_t j = 0; j < languages; j++) {
        double less = logits[j] - logits[best];
        all += less > -40.0 ? exp(less) : 0.0;
    }
    return Py_BuildValue("(nd)", best, 1.0 / all);
}

