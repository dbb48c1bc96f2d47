/* The lexicon of concepts: `concepts.Lexicon.find`, apart from scripts without spaces. */

#include "speedups.h"

enum { EXACT, PREFIX, SUFFIX };

#define LONGEST 40 /* characters of a word that are examined at its ends */
#define NONE (-1)

/* An entry of a list; lists are linked by index. */
typedef struct {
    int32_t value, next;
} Item;

/* A word, or its beginning or end: the concepts that it names, and whether it is part of phrases.
   Phrases know it by its number. */
typedef struct {
    uint32_t start, size;
    int32_t concepts;
    uint8_t kind, is_part;
} Key;

/* Where a phrase leads from a node with its next part. Node 0 is the root. */
typedef struct {
    int32_t node, part, to;
} Step;

typedef struct {
    uint32_t hash;
    int32_t number; /* of a key or step, plus one; 0 in an empty place */
} Place;

typedef struct {
    Place *places;
    uint32_t mask;
    int32_t used;
} Table;

typedef struct {
    PyObject_HEAD
    Py_UCS4 *letters;
    Key *keys;
    Step *steps;
    Item *items;
    int32_t *named; /* the concepts of each node, as a list */
    int32_t *reached, *following;
    uint8_t *found; /* one for each concept, all zero between calls; used under the GIL only */
    Py_ssize_t letters_used, concepts;
    int32_t key_count, step_count, item_count, node_count;
    Table key_table, step_table;
} Lexicon;

static uint32_t
mixed(uint32_t hash, uint32_t salt)
{
    hash = (hash + salt) * 0x85EBCA6B;
    return hash ^ hash >> 15;
}

static uint32_t
with(uint32_t hash, Py_UCS4 code)
{
    return (hash ^ code) * 0x01000193;
}

static int
same(const Lexicon *self, const Key *key, const Py_UCS4 *at, Py_ssize_t size, int kind)
{
    return key->kind == kind && key->size == (size_t)size &&
           memcmp(self->letters + key->start, at, (size_t)size * sizeof *at) == 0;
}

/* The number of a key, or NONE. */
static int32_t
find_key(const Lexicon *self, const Py_UCS4 *at, Py_ssize_t size, int kind, uint32_t hash)
{
    const Table *table = &self->key_table;
    hash = mixed(hash, (uint32_t)kind);
    for (uint32_t i = hash & table->mask;; i = (i + 1) & table->mask) {
        Place place = table->places[i];
        if (place.number == 0) {
            return NONE;
        }
        if (place.hash == hash && same(self, &self->keys[place.number - 1], at, size, kind)) {
            return place.number - 1;
        }
    }
}

/* Where a node leads with a part, or NONE. */
static int32_t
follow(const Lexicon *self, int32_t node, int32_t part)
{
    const Table *table = &self->step_table;
    uint32_t hash = mixed((uint32_t)node * 0x9E3779B1, (uint32_t)part);
    for (uint32_t i = hash & table->mask;; i = (i + 1) & table->mask) {
        Place place = table->places[i];
        if (place.number == 0) {
            return NONE;
        }
        const Step *step = &self->steps[place.number - 1];
        if (place.hash == hash && step->node == node && step->part == part) {
            return step->to;
        }
    }
}

static void
put(Table *table, uint32_t hash, int32_t number)
{
    uint32_t i = hash & table->mask;
    while (table->places[i].number != 0) {
        i = (i + 1) & table->mask;
    }
    table->places[i] = (Place){hash, number + 1};
}

static int
has(const Lexicon *self, int32_t list, int32_t value)
{
    for (; list != NONE; list = self->items[list].next) {
        if (self->items[list].value == value) {
            return 1;
        }
    }
    return 0;
}

static void
prepend(Lexicon *self, int32_t *list, int32_t value)
{
    self->items[self->item_count] = (Item){value, *list};
    *list = self->item_count++;
}

/* The key of a word of a pattern, made where it is missing. */
static int32_t
key_of(Lexicon *self, const Py_UCS4 *at, Py_ssize_t size)
{
    int kind = EXACT;
    uint32_t hash = 0;
    if (at[size - 1] == '*') {
        kind = PREFIX;
        for (; size && at[size - 1] == '*'; size--) {
        }
        for (; size && at[0] == '*'; size--, at++) {
        }
    }
    else if (at[0] == '*') {
        kind = SUFFIX;
        size--, at++;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        hash = with(hash, at[kind == SUFFIX ? size - 1 - i : i]);
    }
    int32_t number = find_key(self, at, size, kind, hash);
    if (number == NONE) {
        number = self->key_count++;
        self->keys[number] = (Key){(uint32_t)self->letters_used, (uint32_t)size, NONE, (uint8_t)kind, 0};
        memcpy(self->letters + self->letters_used, at, (size_t)size * sizeof *at);
        self->letters_used += size;
        put(&self->key_table, mixed(hash, (uint32_t)kind), number);
    }
    return number;
}

static void
add_pattern(Lexicon *self, const Py_UCS4 *at, Py_ssize_t size, int32_t concept)
{
    int32_t node = 0, *concepts;
    int is_phrase = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        is_phrase |= at[i] == ' ';
    }
    if (is_phrase) {
        for (Py_ssize_t start = 0, end; start < size; start = end + 1) {
            for (end = start; end < size && at[end] != ' '; end++) {
            }
            if (end == start) {
                continue;
            }
            int32_t part = key_of(self, at + start, end - start), next = follow(self, node, part);
            self->keys[part].is_part = 1;
            if (next == NONE) {
                next = self->node_count++;
                self->named[next] = NONE;
                self->steps[self->step_count] = (Step){node, part, next};
                uint32_t hash = mixed((uint32_t)node * 0x9E3779B1, (uint32_t)part);
                put(&self->step_table, hash, self->step_count++);
            }
            node = next;
        }
        concepts = &self->named[node];
    }
    else {
        concepts = &self->keys[key_of(self, at, size)].concepts;
    }
    if (!has(self, *concepts, concept)) {
        prepend(self, concepts, concept);
    }
}

static int
table_new(Table *table, Py_ssize_t entries)
{
    size_t size = 64;
    while (size < (size_t)entries * 2) {
        size *= 2;
    }
    table->mask = (uint32_t)(size - 1);
    table->places = PyMem_Calloc(size, sizeof *table->places);
    return table->places != NULL;
}

/* Makes room for so many patterns of so many letters and words altogether. */
static int
make_room(Lexicon *self, Py_ssize_t letters, Py_ssize_t words, Py_ssize_t patterns)
{
    size_t nodes = (size_t)words + 1;
    self->letters = PyMem_New(Py_UCS4, (size_t)letters + 1);
    self->keys = PyMem_New(Key, nodes);
    self->steps = PyMem_New(Step, nodes);
    self->items = PyMem_New(Item, nodes + (size_t)patterns);
    self->named = PyMem_New(int32_t, nodes);
    self->reached = PyMem_New(int32_t, nodes);
    self->following = PyMem_New(int32_t, nodes);
    self->found = PyMem_Calloc((size_t)self->concepts + 1, 1);
    if (self->letters == NULL || self->keys == NULL || self->steps == NULL ||
        self->items == NULL || self->named == NULL || self->reached == NULL ||
        self->following == NULL || self->found == NULL || !table_new(&self->key_table, words) ||
        !table_new(&self->step_table, words)) {
        PyErr_NoMemory();
        return -1;
    }
    self->named[0] = NONE;
    self->node_count = 1;
    return 0;
}

/* Reads the patterns once to count, and once to add them. */
static int
read_patterns(Lexicon *self, PyObject *concepts)
{
    Py_ssize_t letters = 0, words = 0, patterns = 0;
    for (int adding = 0; adding < 2; adding++) {
        for (Py_ssize_t i = 0; i < self->concepts; i++) {
            PyObject *list = PyList_GetItem(concepts, i);
            if (!PyList_Check(list)) {
                PyErr_SetString(PyExc_TypeError, "the patterns of a concept must be a list");
                return -1;
            }
            Py_ssize_t size = PyList_Size(list);
            for (Py_ssize_t j = 0; j < size; j++) {
                Codes codes;
                if (codes_read(&codes, PyList_GetItem(list, j)) < 0) {
                    return -1;
                }
                if (adding && codes.size) {
                    add_pattern(self, codes.at, codes.size, (int32_t)i);
                }
                letters += codes.size;
                words += codes.size / 2 + 1;
                codes_free(&codes);
            }
            patterns += size;
        }
        if (!adding) {
            if (letters > 1 << 28) {
                PyErr_SetString(PyExc_ValueError, "too many patterns");
                return -1;
            }
            if (make_room(self, letters, words, patterns) < 0) {
                return -1;
            }
        }
    }
    return 0;
}

static PyObject *
lexicon_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *concepts;
    static char *names[] = {"patterns", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!:Lexicon", names, &PyList_Type, &concepts)) {
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Lexicon *self = (Lexicon *)alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->concepts = PyList_Size(concepts);
    if (read_patterns(self, concepts) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void
lexicon_dealloc(PyObject *object)
{
    Lexicon *self = (Lexicon *)object;
    PyTypeObject *type = Py_TYPE(object);
    void *const owned[] = {
        self->letters, self->keys,    self->steps, self->items,
        self->named,   self->reached, self->following, self->found,
        self->key_table.places, self->step_table.places,
    };
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        PyMem_Free(owned[i]);
    }
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static void
mark(Lexicon *self, int32_t list)
{
    for (; list != NONE; list = self->items[list].next) {
        self->found[self->items[list].value] = 1;
    }
}

/* What a word that is a key adds: its concepts, and where phrases have come to with it. */
static int32_t
take(Lexicon *self, int32_t key, int32_t reached, int32_t following)
{
    mark(self, self->keys[key].concepts);
    for (int32_t i = NONE; i < reached && self->keys[key].is_part; i++) {
        int32_t node = follow(self, i == NONE ? 0 : self->reached[i], key);
        if (node != NONE) {
            mark(self, self->named[node]);
            self->following[following++] = node;
        }
    }
    return following;
}

/* Reads a word; returns how many phrases have begun and go on with it. */
static int32_t
read_word(Lexicon *self, const Py_UCS4 *word, Py_ssize_t size, int32_t reached)
{
    Py_ssize_t examined = size < LONGEST ? size : LONGEST;
    int32_t following = 0, number;
    uint32_t hash = 0;
    for (Py_ssize_t i = 1; i <= size; i++) {
        hash = with(hash, word[i - 1]);
        if (i <= examined && (number = find_key(self, word, i, PREFIX, hash)) != NONE) {
            following = take(self, number, reached, following);
        }
    }
    if ((number = find_key(self, word, size, EXACT, hash)) != NONE) {
        following = take(self, number, reached, following);
    }
    hash = 0;
    for (Py_ssize_t i = 1; i <= examined; i++) {
        hash = with(hash, word[size - i]);
        if ((number = find_key(self, word + size - i, i, SUFFIX, hash)) != NONE) {
            following = take(self, number, reached, following);
        }
    }
    int32_t *swapped = self->reached;
    self->reached = self->following;
    self->following = swapped;
    return following;
}

/* The numbers of the concepts that a text names, ascending, and whether it has letters of a script
   that is written without spaces. */
static PyObject *
lexicon_find(PyObject *object, PyObject *args)
{
    Lexicon *self = (Lexicon *)object;
    PyObject *tables, *text;
    Codes codes;
    if (!PyArg_ParseTuple(args, "OO:find", &tables, &text)) {
        return NULL;
    }
    const uint8_t *roles = table_of(PyType_GetModule(Py_TYPE(object)), tables, ROLES);
    if (roles == NULL || codes_read(&codes, text) < 0) {
        return NULL;
    }
    int32_t reached = 0;
    int dense = 0;
    for (Py_ssize_t start = 0, end; start < codes.size; start = end + 1) {
        for (end = start; end < codes.size && roles[codes.at[end]] & NAMING; end++) {
            dense |= roles[codes.at[end]] & DENSE;
        }
        dense |= end < codes.size ? roles[codes.at[end]] & DENSE : 0;
        if (end > start) {
            reached = read_word(self, codes.at + start, end - start, reached);
        }
    }
    codes_free(&codes);
    PyObject *found = PyList_New(0);
    uint8_t *at = self->found, *end = self->found + self->concepts;
    while ((at = memchr(at, 1, (size_t)(end - at))) != NULL) {
        *at = 0;
        PyObject *number = found == NULL ? NULL : PyLong_FromSsize_t(at - self->found);
        if (number == NULL || PyList_Append(found, number) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(number);
    }
    return found == NULL ? NULL : Py_BuildValue("(NO)", found, dense ? Py_True : Py_False);
}

static PyMethodDef lexicon_methods[] = {
    {"find", lexicon_find, METH_VARARGS, "The twin of `concepts.Lexicon.find`."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot lexicon_slots[] = {
    {Py_tp_doc, "Lexicon(patterns)\n--\n\nThe patterns of each concept, as a list of lists."},
    {Py_tp_new, lexicon_new},
    {Py_tp_dealloc, lexicon_dealloc},
    {Py_tp_methods, lexicon_methods},
    {0, NULL},
};

PyType_Spec lexicon_spec = {
    .name = "spamdetect.engine.speedups.Lexicon",
    .basicsize = sizeof(Lexicon),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = lexicon_slots,
};
