/* The engine's inner loops in C, as the Python modules beside this folder call them.

   Each function has a twin in Python with numpy, which says what it computes; the tests compare the
   two over many texts. Sums of weights are exact integers. Floating-point operations keep the
   twin's order, so a build must not contract them (-ffp-contract=off). */

#ifndef SPAMDETECT_SPEEDUPS_H
#define SPAMDETECT_SPEEDUPS_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define CODE_POINTS 0x110000
#define SCRIPTS 32
#define FEW 512 /* code points that are kept on the stack */

/* The multipliers of the rolling hashes and of their mixing, as in `features`. */
#define BASE 0x01000193u
#define MIX 0x9E3779B1u

/* The buffers of the tables of characters, and the bits of the last one, as in `tables`. */
enum { KIND, SCRIPT, WORD_BREAK, ROLES };
enum { WORD = 1, BLANK = 2, DIGIT = 4, LETTER = 8, NAMING = 16, DENSE = 32, MARK = 64, ODD = 128 };

/* Read-only buffers of Python objects, kept as long as this object. */

#define MOST_BUFFERS 4

typedef struct {
    PyObject_HEAD
    int count;
    Py_buffer held[MOST_BUFFERS];
    uint64_t *seen; /* one bit for each bucket, all zero between calls; used under the GIL only */
} Arrays;

/* An argument as Arrays of so many buffers, of which the first three have these sizes in bytes
   (-1: any). The module is that of the running function. */
Arrays *arrays_of(PyObject *module, PyObject *object, int count, Py_ssize_t first,
                  Py_ssize_t second, Py_ssize_t third);

/* One of the tables of characters; each has CODE_POINTS bytes. */
const uint8_t *table_of(PyObject *module, PyObject *object, int number);

int check_count(Py_ssize_t given, Py_ssize_t wanted);
void *wrong_size(void);

/* The code points of a text. */

typedef struct {
    Py_UCS4 *at;
    Py_ssize_t size;
    Py_UCS4 room[FEW];
} Codes;

int codes_read(Codes *codes, PyObject *text);
void codes_free(Codes *codes);

extern PyType_Spec lexicon_spec;

#define FUNCTION(name)                                                                             \
    PyObject *speedups_##name(PyObject *module, PyObject *const *args, Py_ssize_t given)

FUNCTION(best_language);
FUNCTION(count);
FUNCTION(digits);
FUNCTION(features);
FUNCTION(first_letter);
FUNCTION(gram_sums);
FUNCTION(hints);
FUNCTION(letters);
FUNCTION(oddities);
FUNCTION(read_letters);
FUNCTION(scores);
FUNCTION(shape);
FUNCTION(unaccented);

#endif
