/* The module: what its functions share, and their list. */

#include "speedups.h"

#define VERSION 2 /* of what the functions take and give, as in `native.VERSION` */

typedef struct {
    PyTypeObject *arrays;
} State;

static PyObject *
arrays_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Py_ssize_t count = PyTuple_Size(args);
    if (count < 1 || count > MOST_BUFFERS || (kwargs != NULL && PyDict_Size(kwargs) > 0)) {
        PyErr_SetString(PyExc_TypeError, "Arrays takes one to four buffers");
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Arrays *self = (Arrays *)alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    while (self->count < count) {
        Py_buffer *held = &self->held[self->count];
        if (PyObject_GetBuffer(PyTuple_GetItem(args, self->count), held, PyBUF_SIMPLE) < 0) {
            Py_DECREF(self);
            return NULL;
        }
        self->count++;
        if ((uintptr_t)held->buf % sizeof(double) != 0) {
            PyErr_SetString(PyExc_ValueError, "a buffer is not aligned");
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static void
arrays_dealloc(PyObject *object)
{
    Arrays *self = (Arrays *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (int i = 0; i < self->count; i++) {
        PyBuffer_Release(&self->held[i]);
    }
    PyMem_Free(self->seen);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyType_Slot arrays_slots[] = {
    {Py_tp_doc, "Arrays(*buffers)\n--\n\nHolds read-only buffers for the functions of the module."},
    {Py_tp_new, arrays_new},
    {Py_tp_dealloc, arrays_dealloc},
    {0, NULL},
};

static PyType_Spec arrays_spec = {
    .name = "spamdetect.engine.speedups.Arrays",
    .basicsize = sizeof(Arrays),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = arrays_slots,
};

void *
wrong_size(void)
{
    PyErr_SetString(PyExc_ValueError, "buffers of another number or size");
    return NULL;
}

Arrays *
arrays_of(PyObject *module, PyObject *object, int count, Py_ssize_t first, Py_ssize_t second,
          Py_ssize_t third)
{
    State *state = PyModule_GetState(module);
    const Py_ssize_t sizes[] = {first, second, third};
    if (Py_TYPE(object) != state->arrays) {
        PyErr_SetString(PyExc_TypeError, "an argument must be Arrays");
        return NULL;
    }
    Arrays *found = (Arrays *)object;
    int fits = found->count == count;
    for (int i = 0; fits && i < count && i < 3; i++) {
        fits = sizes[i] < 0 || found->held[i].len == sizes[i];
    }
    return fits ? found : wrong_size();
}

const uint8_t *
table_of(PyObject *module, PyObject *object, int number)
{
    Arrays *tables = arrays_of(module, object, 4, CODE_POINTS, CODE_POINTS, CODE_POINTS);
    if (tables != NULL && tables->held[ROLES].len != CODE_POINTS) {
        return wrong_size();
    }
    return tables == NULL ? NULL : tables->held[number].buf;
}

int
check_count(Py_ssize_t given, Py_ssize_t wanted)
{
    if (given != wanted) {
        PyErr_Format(PyExc_TypeError, "%zd arguments instead of %zd", given, wanted);
        return -1;
    }
    return 0;
}

int
codes_read(Codes *codes, PyObject *text)
{
    codes->at = codes->room;
    codes->size = PyUnicode_GetLength(text);
    if (codes->size < 0) {
        return -1;
    }
    if (codes->size > FEW) {
        codes->at = PyMem_New(Py_UCS4, codes->size);
        if (codes->at == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    if (PyUnicode_AsUCS4(text, codes->at, codes->size, 0) == NULL) {
        codes_free(codes);
        return -1;
    }
    return 0;
}

void
codes_free(Codes *codes)
{
    if (codes->at != codes->room) {
        PyMem_Free(codes->at);
    }
}

#define METHOD(name, doc)                                                                          \
    {#name, (PyCFunction)(void (*)(void))speedups_##name, METH_FASTCALL, doc}

static PyMethodDef methods[] = {
    METHOD(best_language, "The twin of `ScriptModel.best`."),
    METHOD(count, "The twin of `counts.count`."),
    METHOD(digits, "The twin of `structure._of_digits`."),
    METHOD(features, "The twin of `structure.features`."),
    METHOD(first_letter, "The twin of `language.first_letter`."),
    METHOD(gram_sums, "The twin of `SpamModel.gram_sums`."),
    METHOD(hints, "Which steps of normalisation a text needs."),
    METHOD(letters, "Letters by script, for `normalise._fold_scripts`."),
    METHOD(oddities, "Which steps of `normalise.plain` a text needs."),
    METHOD(read_letters, "The twin of `language.read_letters`."),
    METHOD(scores, "The twin of `Network.judge`."),
    METHOD(shape, "The twin of `normalise._finish`."),
    METHOD(unaccented, "The text without the accents U+0300-036F."),
    {NULL, NULL, 0, NULL},
};

static int
module_exec(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->arrays = (PyTypeObject *)PyType_FromModuleAndSpec(module, &arrays_spec, NULL);
    if (state->arrays == NULL || PyModule_AddType(module, state->arrays) < 0 ||
        PyModule_AddIntConstant(module, "VERSION", VERSION) < 0) {
        return -1;
    }
    PyObject *lexicon = PyType_FromModuleAndSpec(module, &lexicon_spec, NULL);
    int added = lexicon == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)lexicon);
    Py_XDECREF(lexicon);
    return added;
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->arrays);
    return 0;
}

static int
module_clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->arrays);
    return 0;
}

static void
module_free(void *module)
{
    module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "spamdetect.engine.speedups",
    .m_doc = "The engine's inner loops in C.",
    .m_size = sizeof(State),
    .m_methods = methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC
PyInit_speedups(void)
{
    return PyModuleDef_Init(&module_def);
}
