/* The hot part of recorder.py in C: the state that hooks share, and what they do in a plain step.

   A hook in the middle of a training step finds cold caches, and Python pays for them: nine events
   in Python take 10 us there, in C 2 us. Nothing depends on this file: where it was not built,
   `PythonEvents` in recorder.py does the same, and the same tests run over both.

   `Events` holds the state and packs events into the ring. `shortcut(name, slow)` gives a function
   for a hook. It handles the plain case: the training thread, nothing special about the step, no
   boundary at which the GPU's clock plans. In any other case, and where a mark on the GPU fails, it
   calls `slow`, the whole hook in Python, before it has changed anything. So what a hook does is
   read in Python; what is here has to agree.

   Everything runs under the GIL and calls no Python code between taking an event's number and
   writing it, so two threads never get the same slot. Errors are raised, never swallowed. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pythread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "events are little-endian: here Python packs them"
#endif

typedef struct {
    int64_t moment_ns;
    uint16_t kind, flags;
    uint32_t mark;
    int64_t argument;
    uint64_t number;
} Event; /* `EVENT` in model/record_layout.py */

#define MAX_PAYLOAD 244
typedef struct {
    uint16_t length, more;
    char payload[MAX_PAYLOAD];
    uint64_t number;
} __attribute__((packed)) Message; /* `MESSAGE` there */

typedef struct {
    char mark;
    uint8_t moment_kind;
    uint16_t count;
    int64_t moment, unix_ns;
} __attribute__((packed)) MetricsHead; /* `_HEAD` in model/packed_metrics.py */

/* The state, by the kind of its fields; what each means stands in recorder.py. */
#define NUMBERS(each)                                                                              \
    each(written) each(noted_ns) each(followed) each(ends) each(ends_since_fetch)                  \
    each(ends_at_fetch) each(source) each(trained) each(optimizers) each(iterator_source)          \
    each(workers) each(training_workers) each(collated_ns) each(optimizer_number) each(passes)     \
    each(usual_passes) each(patience) each(backwards_open) each(elsewhere_ns)                      \
    each(explicit_depth) each(due_ns) each(modules_seen) each(forward_of) each(untimed_steps)      \
    each(stream) each(gpu_index) each(loss_number) each(loss_step) each(loss_device)               \
    each(loss_stream) each(loss_due_ns) each(loss_due_number) each(messages_at)                    \
    each(messages_counted_at) each(message_slots) each(message_writers)
#define FLAGS(each)                                                                                \
    each(timed) each(step_ends) each(identified) each(is_explicit) each(by_hand)                   \
    each(stepped_in_backward) each(is_in_step) each(is_watching) each(is_loss_scaled)              \
    each(has_new_marks)
#define OBJECTS(each)                                                                              \
    each(gpu) each(optimizer_mark) each(collected_ns) each(looks) each(modules)                    \
    each(watched_models) each(contents_of) each(iterator) each(optimizer) each(step_model)          \
    each(is_interrupted) each(look_at_memory) each(latest_loss) each(copy_target)       \
    each(metric_names)

typedef struct {
    PyObject_HEAD
    Py_buffer slots; /* where events go */
    char *first_slot;
    uint64_t mask;
#define NUMBER(name) int64_t name;
#define FLAG(name) char name;
#define OBJECT(name) PyObject *name;
    NUMBERS(NUMBER) FLAGS(FLAG) OBJECTS(OBJECT)
} Events;

/* Kinds of events and what else stands in steps/events.py, read when this module is loaded. */
#define KINDS(each)                                                                                \
    each(BEGIN) each(SPEND) each(SPEND_WITHIN) each(BEGIN_FETCH) each(END_FETCH)                   \
    each(BEGIN_FORWARD) each(END_FORWARD) each(BEGIN_BACKWARD) each(END_BACKWARD)                  \
    each(BEGIN_OPTIMIZER) each(END_OPTIMIZER) each(ENTER_STEP) each(EXIT_STEP) each(H2D) each(GC)  \
    each(COLLATE) each(TIMED) each(KNOWN_LOSS) each(AWAITED_LOSS) each(CAUSE_SHIFT)                \
    each(NUMBER_BITS) each(MAX_COUNTED)
#define KIND(name) name,
#define NAME(name) #name,
enum { KINDS(KIND) CONSTANTS };
static const char *constant_names[] = {KINDS(NAME)};
static int64_t constants[CONSTANTS];
#define K(name) (constants[name])

#define MAX_ENDS_PER_FETCH 16 /* as in recorder.py */

/* Names and functions of torch's; `use_torch` gives the latter. */
static PyObject *mark_name, *mark_boundary_name, *training_name, *is_cpu_name, *is_cuda_name;
static PyObject *requires_grad_name, *base_name, *version_name, *device_name, *shape_name;
static PyObject *tensor_type, *is_grad_enabled, *function_modes, *dispatch_modes, *numel, *item;
static PyObject *get_device, *detach, *stream_number, *graph_trees;

static int64_t read_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The clock of time.perf_counter_ns. */
static int64_t now_ns(void) {
#ifdef __APPLE__
    return read_clock(CLOCK_UPTIME_RAW);
#else
    return read_clock(CLOCK_MONOTONIC);
#endif
}

/* What a call gave, as a number; -1 with an exception. Takes the reference. */
static int64_t as_number(PyObject *answer) {
    int64_t number = answer ? PyLong_AsLongLong(answer) : -1;
    Py_XDECREF(answer);
    return number;
}

static int64_t as_bits(double value) {
    int64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Writing events */

static void put(Events *self, int64_t moment, int64_t kind, int64_t flags, int64_t mark,
                int64_t argument) {
    Event event = {moment, (uint16_t)kind, (uint16_t)flags, (uint32_t)mark, argument, 0};
    uint64_t number = (uint64_t)self->written++;
    char *slot = self->first_slot + (number & self->mask) * sizeof(Event);
    number += 1;
    memcpy(slot, &event, offsetof(Event, number));
    __atomic_thread_fence(__ATOMIC_RELEASE); /* a reader goes by the number: it comes last */
    memcpy(slot + offsetof(Event, number), &number, sizeof(number));
}

/* Charges the garbage collections since the last event; 0, or -1 with an exception. */
static int charge_collections(Events *self) {
    int64_t total_ns = as_number(PySequence_GetItem(self->collected_ns, 0));
    if (total_ns == -1 && PyErr_Occurred())
        return -1;
    if (total_ns > self->noted_ns) {
        put(self, 0, K(SPEND), K(GC) << K(CAUSE_SHIFT), 0, total_ns - self->noted_ns);
        self->noted_ns = total_ns;
    }
    return 0;
}

/* The number of a mark that the GPU's timeline makes; -1 with an exception. */
static int64_t mark_on_gpu(Events *self, PyObject *method) {
    PyObject *gpu = Py_NewRef(self->gpu);
    int64_t mark = as_number(PyObject_CallMethodObjArgs(gpu, method, NULL));
    Py_DECREF(gpu);
    return mark;
}

static int64_t note(Events *self, int64_t kind, int64_t argument, int64_t flags) {
    int64_t now = now_ns(), mark = 0;
    if (charge_collections(self) < 0)
        return -1;
    if (self->timed) {
        mark = mark_on_gpu(self, mark_name);
        if (mark < 0)
            return -1;
        self->has_new_marks = 1;
        if (self->timed)
            flags |= K(TIMED);
    }
    put(self, now, kind, flags, mark, argument);
    return mark;
}

/* Whether the GPU's timeline has something to do where a step may end, with a step that ends. */
static int plans_at_boundary(Events *self, int ends) {
    return self->gpu != Py_None && self->untimed_steps <= (ends ? 1 : 0);
}

static int64_t note_boundary(Events *self, int64_t kind, int64_t argument, int64_t flags) {
    int64_t now = now_ns(), mark = 0;
    if (charge_collections(self) < 0)
        return -1;
    if (self->timed)
        flags |= K(TIMED); /* of the step that may end here, before the next is planned */
    if (plans_at_boundary(self, self->step_ends)) {
        mark = mark_on_gpu(self, mark_boundary_name);
        if (mark < 0)
            return -1;
    } else if (self->step_ends) {
        self->step_ends = 0;
        self->untimed_steps -= self->untimed_steps > 0;
    }
    put(self, now, kind, flags, mark, argument);
    return mark;
}

static int64_t end_step(Events *self, int64_t kind, int64_t argument, int64_t flags) {
    int64_t mark;
    if (self->gpu == Py_None) {
        mark = note(self, kind, argument, flags);
    } else if (self->ends_since_fetch < MAX_ENDS_PER_FETCH) {
        self->ends_since_fetch += 1;
        mark = note(self, kind, argument, flags);
        self->step_ends = 1;
    } else { /* no fetch will end it */
        self->step_ends = 1;
        mark = note_boundary(self, kind, argument, flags);
    }
    self->trained = self->source;
    return mark;
}

static int64_t begin_fetch(Events *self, int64_t source) {
    int64_t mark = note_boundary(self, K(BEGIN_FETCH), source, 0);
    self->source = source;
    self->ends_since_fetch = 0;
    self->ends_at_fetch = self->ends;
    return mark;
}

/* The methods of `Events` */

/* What a method is given; a floating-point number counts as its bits, as events hold it. */
static int numbers_in(PyObject *const *given, Py_ssize_t count, int64_t *found, Py_ssize_t most) {
    if (count > most) {
        PyErr_Format(PyExc_TypeError, "%zd arguments, at most %zd are taken", count, most);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        found[i] = PyFloat_CheckExact(given[i]) ? as_bits(PyFloat_AsDouble(given[i]))
                                                : PyLong_AsLongLong(given[i]);
        if (found[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

#define METHOD(name, most, call)                                                                   \
    static PyObject *name##_method(Events *self, PyObject *const *given, Py_ssize_t count) {       \
        int64_t n[5] = {0, 0, 0, 0, 0};                                                            \
        if (numbers_in(given, count, n, most) < 0)                                                 \
            return NULL;                                                                           \
        int64_t result = call;                                                                     \
        return result < 0 ? NULL : PyLong_FromLongLong(result);                                    \
    }
METHOD(note, 3, note(self, n[0], n[1], n[2]))
METHOD(note_boundary, 3, note_boundary(self, n[0], n[1], n[2]))
METHOD(note_on_host, 5, (put(self, n[4], n[0], n[2], n[3], n[1]), 0))
METHOD(end_step, 3, end_step(self, n[0], n[1], n[2]))
METHOD(begin_fetch, 1, begin_fetch(self, n[0]))
METHOD(note_collections, 0, charge_collections(self))

static PyObject *write_to_method(Events *self, PyObject *arguments) {
    PyObject *buffer;
    Py_ssize_t base, capacity;
    Py_buffer slots;
    if (!PyArg_ParseTuple(arguments, "Onn", &buffer, &base, &capacity) ||
        PyObject_GetBuffer(buffer, &slots, PyBUF_WRITABLE) < 0)
        return NULL;
    if (base < 0 || capacity < 1 || (capacity & (capacity - 1)) ||
        capacity > (slots.len - base) / (Py_ssize_t)sizeof(Event)) {
        PyBuffer_Release(&slots);
        PyErr_SetString(PyExc_ValueError, "the slots have to lie in the buffer, a power of two");
        return NULL;
    }
    Py_buffer before = self->slots;
    self->slots = slots;
    self->first_slot = (char *)slots.buf + base;
    self->mask = (uint64_t)capacity - 1;
    PyBuffer_Release(&before); /* does nothing where there was none */
    Py_RETURN_NONE;
}

/* Plain cases. Each function below belongs to a hook: `bound` is the pair (Events, slow). */

static Events *events_of(PyObject *bound) { return (Events *)PyTuple_GetItem(bound, 0); }

static PyObject *call_slow(PyObject *bound, PyObject *argument) {
    return PyObject_CallFunctionObjArgs(PyTuple_GetItem(bound, 1), argument, NULL);
}

/* Something failed in a plain case, before anything was changed. If somebody interrupted it
   (`is_interruption`), that goes on to the script, and this is false; else the hook in Python is to
   try, and counts it. */
static int is_to_be_tried(PyObject *bound) {
    PyObject *type, *error, *trace, *is_interrupted = events_of(bound)->is_interrupted;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace)
        PyException_SetTraceback(error, trace);
    Py_XDECREF(trace);
    PyObject *answer = PyObject_CallFunctionObjArgs(is_interrupted, error, NULL);
    int goes_on = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    if (goes_on == 1) {
        PyErr_Restore(type, error, PyException_GetTraceback(error));
        return 0;
    }
    Py_DECREF(type);
    Py_DECREF(error);
    return goes_on == 0;
}

static PyObject *retry_in_python(PyObject *bound, PyObject *argument) {
    return is_to_be_tried(bound) ? call_slow(bound, argument) : NULL;
}

/* The same with two arguments, where something may have failed. */
static PyObject *retry_in_python_with_two(PyObject *bound, PyObject *const *given) {
    if (PyErr_Occurred() && !is_to_be_tried(bound))
        return NULL;
    return PyObject_CallFunctionObjArgs(PyTuple_GetItem(bound, 1), given[0], given[1], NULL);
}

/* The end of a plain case that makes no mark on the GPU. */
static PyObject *none_or_error(int64_t result) {
    if (result < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Whether this thread trains, and torch is known. */
static int is_plain(Events *self) {
    return self->followed == (int64_t)PyThread_get_thread_ident() && tensor_type;
}

/* Whether any module has been loaded since somebody looked (`Session.find_new_modules`). */
static int has_new_modules(Events *self) {
    return PyDict_Size(self->modules) != self->modules_seen;
}

/* Whether nobody wants to look at something once a step has ended (`Session.after_step`). */
static int is_quiet(Events *self) {
    return !self->has_new_marks && PyList_Size(self->looks) == 0 && !has_new_modules(self);
}

/* Whether a weak reference is to this very thing; -1 with an exception. */
static int refers_to(PyObject *reference, PyObject *thing) {
    PyObject *found = PyObject_CallNoArgs(reference);
    Py_XDECREF(found); /* compared only: whoever called us holds the thing */
    return found ? found == thing : -1;
}

/* What an attribute or a function gives, as 0 or 1; -1 with an exception. Takes the reference. */
static int is_true(PyObject *answer) {
    int truth = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return truth;
}

static PyObject *quick_note(PyObject *bound, PyObject *const *given, Py_ssize_t count) {
    Events *self = events_of(bound);
    if (count != 2)
        return note_method(self, given, count);
    PyObject *noted = is_plain(self) ? note_method(self, given, count) : NULL;
    return noted ? noted : retry_in_python_with_two(bound, given);
}

static PyObject *quick_begin_fetch(PyObject *bound, PyObject *iterator) {
    Events *self = events_of(bound);
    if (!is_plain(self) || self->workers || self->is_watching ||
        plans_at_boundary(self, self->step_ends))
        return call_slow(bound, iterator);
    int is_known = refers_to(self->iterator, iterator);
    if (is_known < 0)
        return retry_in_python(bound, iterator);
    return is_known ? none_or_error(begin_fetch(self, self->iterator_source))
                    : call_slow(bound, iterator);
}

/* The first thing in a batch, or the batch itself; borrowed, and NULL where it is empty. */
static PyObject *first_in(PyObject *batch) {
    Py_ssize_t place = 0;
    PyObject *name, *first = NULL;
    if (PyTuple_CheckExact(batch))
        return PyTuple_Size(batch) > 0 ? PyTuple_GetItem(batch, 0) : NULL;
    if (PyList_CheckExact(batch))
        return PyList_Size(batch) > 0 ? PyList_GetItem(batch, 0) : NULL;
    if (!PyDict_CheckExact(batch))
        return batch;
    PyDict_Next(batch, &place, &name, &first);
    return first;
}

/* `fetched` of events.py for a tensor of this shape; -1 where it has no dimension, or with an
   exception. */
static int64_t fetched(PyObject *shape) {
    Py_ssize_t dimensions = PyTuple_Size(shape);
    int64_t samples = -1, elements = 1;
    for (Py_ssize_t place = 0; place < dimensions; place++) {
        int64_t size = PyLong_AsLongLong(PyTuple_GetItem(shape, place));
        if (size < 0)
            return -1;
        if (place == 0)
            samples = size;
        if (elements <= K(MAX_COUNTED)) /* both fit 31 bits: their product fits */
            elements = size <= K(MAX_COUNTED) ? elements * size : K(MAX_COUNTED) + 1;
    }
    if (samples < 0 || samples > K(MAX_COUNTED))
        return -1;
    return (elements <= K(MAX_COUNTED) ? elements : 0) << 32 | samples;
}

/* `contents_of` of loaders.py: what the first tensor of a batch holds; -1 where there is none, or
   with an exception. */
static int64_t contents_of(Events *self, PyObject *batch) {
    PyObject *first = first_in(batch);
    int64_t contents = -1;
    if (first && (PyObject *)Py_TYPE(first) == tensor_type) {
        PyObject *shape = PyObject_GetAttr(first, shape_name);
        if (shape)
            contents = fetched(shape);
        Py_XDECREF(shape);
    }
    if (contents >= 0 || PyErr_Occurred())
        return contents;
    return as_number(PyObject_CallFunctionObjArgs(self->contents_of, batch, NULL));
}

static PyObject *quick_end_fetch(PyObject *bound, PyObject *batch) {
    Events *self = events_of(bound);
    if (!is_plain(self) || self->workers || self->training_workers)
        return call_slow(bound, batch);
    int64_t contents = contents_of(self, batch);
    if (contents == -1 && PyErr_Occurred())
        return retry_in_python(bound, batch);
    if (self->collated_ns) {
        put(self, 0, K(SPEND_WITHIN), K(COLLATE) << K(CAUSE_SHIFT), 0, self->collated_ns);
        self->collated_ns = 0;
    }
    if (note(self, K(END_FETCH), contents, 0) < 0)
        return retry_in_python(bound, batch);
    Py_RETURN_NONE;
}

/* Copies: called with a tensor, the arguments and the options of its method. Each gives what the
   copy is: H2D where its phase has begun, BESIDE, None; `copies.py` finds the rest. */

#define BESIDE -1 /* as in copies.py */

static PyObject *look_in_python(PyObject *bound, PyObject *const *given) {
    PyObject *slow = PyTuple_GetItem(bound, 1);
    return PyObject_CallFunctionObjArgs(slow, given[0], given[1], given[2], NULL);
}

/* Whether the current stream is that of the last mark; -1 with an exception. */
static int is_on_its_stream(Events *self) {
    PyObject *index = PyLong_FromLongLong(self->gpu_index);
    int64_t stream =
        index ? as_number(PyObject_CallFunctionObjArgs(stream_number, index, NULL)) : -1;
    Py_XDECREF(index);
    return stream == -1 && PyErr_Occurred() ? -1 : stream == self->stream;
}

/* A tensor is copied to the GPU, if this is one; `source` is NULL where Python has to look. */
static PyObject *begin_copy_of(PyObject *source, PyObject *bound, PyObject *const *given) {
    Events *self = events_of(bound);
    int has_clock = self->gpu != Py_None;
    if (!source || !is_plain(self) || (has_clock && self->stream < 0) ||
        (PyObject *)Py_TYPE(source) != tensor_type)
        return look_in_python(bound, given);
    int is_on_host = is_true(PyObject_GetAttr(source, is_cpu_name));
    if (is_on_host == 0)
        Py_RETURN_NONE;
    int begins = is_on_host < 0 ? -1 : has_clock ? is_on_its_stream(self) : 1;
    if (begins < 0 || (begins && note(self, K(BEGIN), K(H2D), 0) < 0))
        return is_to_be_tried(bound) ? look_in_python(bound, given) : NULL;
    return PyLong_FromLongLong(begins ? K(H2D) : BESIDE);
}

static PyObject *quick_begin_to(PyObject *bound, PyObject *const *given, Py_ssize_t count) {
    PyObject *target = PyTuple_Size(given[1]) > 0 ? PyTuple_GetItem(given[1], 0)
                                                  : PyDict_GetItemWithError(given[2], device_name);
    int is_known = target && target != Py_None && target == events_of(bound)->copy_target;
    return begin_copy_of(is_known ? given[0] : NULL, bound, given);
}

static PyObject *quick_begin_cuda(PyObject *bound, PyObject *const *given, Py_ssize_t count) {
    return begin_copy_of(given[0], bound, given);
}

static PyObject *quick_begin_copy(PyObject *bound, PyObject *const *given, Py_ssize_t count) {
    int is_to_gpu = (PyObject *)Py_TYPE(given[0]) == tensor_type && PyTuple_Size(given[1]) > 0
                        ? is_true(PyObject_GetAttr(given[0], is_cuda_name))
                        : 0;
    if (is_to_gpu < 0)
        return is_to_be_tried(bound) ? look_in_python(bound, given) : NULL;
    return begin_copy_of(is_to_gpu ? PyTuple_GetItem(given[1], 0) : NULL, bound, given);
}

/* The mode of a watched model that is called, if no other call of one is open; else None. */
static PyObject *quick_begin_forward(PyObject *bound, PyObject *model) {
    Events *self = events_of(bound);
    if (!is_plain(self))
        return call_slow(bound, model);
    if (self->forward_of)
        Py_RETURN_NONE;
    PyObject *identity = PyLong_FromVoidPtr(model);
    PyObject *known = identity ? PyDict_GetItemWithError(self->watched_models, identity) : NULL;
    Py_XDECREF(identity);
    if (!known && !PyErr_Occurred())
        Py_RETURN_NONE;
    int is_watched = known ? refers_to(known, model) : -1;
    if (is_watched == 0)
        Py_RETURN_NONE;
    int training = is_watched < 0 ? -1 : is_true(PyObject_GetAttr(model, training_name));
    int has_gradients = training < 0 ? -1 : is_true(PyObject_CallNoArgs(is_grad_enabled));
    if (has_gradients < 0 || note(self, K(BEGIN_FORWARD), training + 2 * has_gradients, 0) < 0)
        return retry_in_python(bound, model);
    self->forward_of = (int64_t)(intptr_t)model;
    return PyLong_FromLong(training + 2 * has_gradients);
}

static PyObject *quick_end_forward(PyObject *bound, PyObject *mode) {
    Events *self = events_of(bound);
    int64_t number = PyLong_AsLongLong(mode);
    if (number < 0 || !is_plain(self))
        return call_slow(bound, mode);
    if (note(self, K(END_FORWARD), number, 0) < 0)
        return retry_in_python(bound, mode);
    self->forward_of = 0;
    Py_RETURN_NONE;
}

/* How many modes watch what is asked of a tensor; -1 with an exception. */
static int64_t count_modes(void) {
    int64_t modes = as_number(PyObject_CallNoArgs(function_modes));
    return modes ? modes : as_number(PyObject_CallNoArgs(dispatch_modes));
}

/* Whether this is a tensor on the host that holds one number, and no mode watches what is asked of
   it; -1 with an exception. */
static int is_plain_loss(PyObject *loss) {
    if ((PyObject *)Py_TYPE(loss) != tensor_type)
        return 0;
    int64_t modes = count_modes();
    if (modes)
        return modes < 0 ? -1 : 0;
    int is_on_host = is_true(PyObject_GetAttr(loss, is_cpu_name));
    if (is_on_host <= 0)
        return is_on_host;
    int64_t size = as_number(PyObject_CallFunctionObjArgs(numel, loss, NULL));
    return size < 0 ? -1 : size == 1;
}

/* Whether a tensor holds one number, owns its memory, is part of a graph, and is computed on the
   stream of the last loss; not so with an exception. */
static int can_be_kept(Events *self, PyObject *loss, PyObject *device) {
    if (as_number(PyObject_CallFunctionObjArgs(numel, loss, NULL)) != 1 ||
        is_true(PyObject_GetAttr(loss, requires_grad_name)) != 1)
        return 0;
    PyObject *base = PyObject_GetAttr(loss, base_name);
    Py_XDECREF(base); /* compared only */
    return base == Py_None && as_number(PyObject_CallFunctionObjArgs(
                                  stream_number, device, NULL)) == self->loss_stream;
}

/* `Recorder.step_key` */
static int64_t step_key(Events *self) {
    return self->ends_since_fetch < MAX_ENDS_PER_FETCH ? self->ends_at_fetch
                                                       : self->ends / self->optimizers;
}

/* `Losses.keep`: the number of a loss, and what is to be kept of it; 0 where the step has a loss
   already; -1 where Python has to look, with an exception or without. */
static int64_t keep_loss(Events *self, PyObject *loss, PyObject **kept) {
    if ((PyObject *)Py_TYPE(loss) != tensor_type || self->loss_number >= self->loss_due_number ||
        now_ns() >= self->loss_due_ns || count_modes() ||
        PyDict_Contains(self->modules, graph_trees))
        return -1;
    PyObject *device = PyObject_CallFunctionObjArgs(get_device, loss, NULL);
    int64_t index = device ? PyLong_AsLongLong(device) : -1, found = -1;
    if (index >= 0 && index == self->loss_device) {
        if (step_key(self) == self->loss_step)
            found = 0;
        else if (can_be_kept(self, loss, device))
            found = self->loss_number + 1;
    }
    Py_XDECREF(device);
    if (found <= 0)
        return found;
    PyObject *detached = PyObject_CallFunctionObjArgs(detach, loss, NULL);
    PyObject *version = detached ? PyObject_GetAttr(loss, version_name) : NULL;
    PyObject *number = version ? PyLong_FromLongLong(found) : NULL;
    *kept = number ? PyTuple_Pack(3, detached, version, number) : NULL;
    Py_XDECREF(detached);
    Py_XDECREF(version);
    Py_XDECREF(number);
    return *kept ? found : -1;
}

/* Where the model is on a GPU: its loss is no number yet. */
static PyObject *begin_backward_on_gpu(PyObject *bound, PyObject *loss) {
    Events *self = events_of(bound);
    PyObject *kept = NULL;
    if (now_ns() >= self->due_ns)
        return call_slow(bound, loss);
    int64_t number = keep_loss(self, loss, &kept);
    if (number < 0)
        return PyErr_Occurred() ? retry_in_python(bound, loss) : call_slow(bound, loss);
    if (note(self, K(BEGIN_BACKWARD), number, number ? K(AWAITED_LOSS) : 0) < 0) {
        Py_XDECREF(kept);
        return retry_in_python(bound, loss);
    }
    self->backwards_open = 1;
    if (kept) {
        PyObject *before = self->latest_loss;
        self->latest_loss = kept;
        self->loss_number = number;
        self->loss_step = step_key(self);
        Py_XDECREF(before);
    }
    Py_RETURN_NONE;
}

static PyObject *quick_begin_backward(PyObject *bound, PyObject *loss) {
    Events *self = events_of(bound);
    if (!is_plain(self) || self->is_in_step || self->is_watching || self->backwards_open ||
        self->is_loss_scaled || has_new_modules(self))
        return call_slow(bound, loss);
    if (self->gpu != Py_None)
        return begin_backward_on_gpu(bound, loss);
    int is_loss = is_plain_loss(loss);
    PyObject *value = is_loss > 0 ? PyObject_CallFunctionObjArgs(item, loss, NULL) : NULL;
    if (is_loss < 0 || (is_loss && !value))
        return retry_in_python(bound, loss);
    if (!value || !PyFloat_CheckExact(value)) {
        Py_XDECREF(value);
        return call_slow(bound, loss);
    }
    int64_t argument = as_bits(PyFloat_AsDouble(value)), now = now_ns();
    Py_DECREF(value);
    if (charge_collections(self) < 0)
        return retry_in_python(bound, loss);
    self->backwards_open = 1;
    put(self, now, K(BEGIN_BACKWARD), K(KNOWN_LOSS), 0, argument);
    if (now < self->due_ns)
        Py_RETURN_NONE;
    PyObject *moment = PyLong_FromLongLong(now), *result = NULL;
    if (moment)
        result = PyObject_CallFunctionObjArgs(self->look_at_memory, moment, NULL);
    Py_XDECREF(moment);
    return result;
}

static PyObject *quick_end_backward(PyObject *bound, PyObject *nothing) {
    Events *self = events_of(bound);
    if (!is_plain(self) || self->backwards_open != 1 || self->elsewhere_ns ||
        (self->by_hand && !self->is_explicit) || self->stepped_in_backward ||
        (self->passes >= self->patience && !self->is_in_step))
        return call_slow(bound, nothing);
    if (note(self, K(END_BACKWARD), self->ends, 0) < 0)
        return retry_in_python(bound, nothing);
    self->backwards_open = 0;
    self->passes += 1;
    Py_RETURN_NONE;
}

static PyObject *quick_begin_optimizer(PyObject *bound, PyObject *optimizer) {
    Events *self = events_of(bound);
    if (!is_plain(self) || self->timed || !self->identified || self->is_watching ||
        self->passes != self->usual_passes)
        return call_slow(bound, optimizer);
    int is_known = refers_to(self->optimizer, optimizer);
    if (is_known <= 0)
        return is_known ? retry_in_python(bound, optimizer) : call_slow(bound, optimizer);
    PyObject *mark = self->optimizer_mark;
    self->passes = 0;
    self->is_in_step = 1;
    self->optimizer_mark = Py_NewRef(Py_None);
    Py_XDECREF(mark);
    return none_or_error(note(self, K(BEGIN_OPTIMIZER), self->optimizer_number, 0));
}

static PyObject *quick_end_optimizer(PyObject *bound, PyObject *optimizer) {
    Events *self = events_of(bound);
    if (!is_plain(self) || self->timed || self->passes || self->optimizer_mark != Py_None ||
        !is_quiet(self) ||
        (self->ends_since_fetch >= MAX_ENDS_PER_FETCH && plans_at_boundary(self, 1)))
        return call_slow(bound, optimizer);
    int is_known = refers_to(self->optimizer, optimizer);
    if (is_known <= 0)
        return is_known ? retry_in_python(bound, optimizer) : call_slow(bound, optimizer);
    int is_end = !self->is_explicit && !self->backwards_open;
    int64_t ends = self->ends += is_end;
    int64_t argument = ends << K(NUMBER_BITS) | self->optimizer_number;
    self->is_in_step = 0;
    if (is_end)
        return none_or_error(end_step(self, K(END_OPTIMIZER), argument, 0));
    self->stepped_in_backward = !self->is_explicit;
    return none_or_error(note(self, K(END_OPTIMIZER), argument, 0));
}

static PyObject *quick_enter_step(PyObject *bound, PyObject *model) {
    Events *self = events_of(bound);
    if (!is_plain(self) || !self->identified || !self->is_explicit ||
        plans_at_boundary(self, self->step_ends))
        return call_slow(bound, model);
    int is_known = model == Py_None ? 1 : refers_to(self->step_model, model);
    if (is_known <= 0)
        return is_known ? retry_in_python(bound, model) : call_slow(bound, model);
    self->explicit_depth += 1;
    return none_or_error(note_boundary(self, K(ENTER_STEP), 0, 0));
}

static PyObject *quick_exit_step(PyObject *bound, PyObject *is_aborted) {
    Events *self = events_of(bound);
    if (!is_plain(self) || is_aborted != Py_False || self->explicit_depth != 1 ||
        !is_quiet(self) || plans_at_boundary(self, 1))
        return call_slow(bound, is_aborted);
    self->explicit_depth = 0;
    self->ends += 1;
    self->step_ends = self->gpu != Py_None;
    self->trained = self->source;
    return none_or_error(note_boundary(self, K(EXIT_STEP), self->ends << 1, 0));
}

/* Metrics that a script logs: numbers under names that came before. `Messages` does the rest. */

/* What an exact float or int is, or that it is neither. */
static int number_of(PyObject *value, double *number) {
    if (PyFloat_CheckExact(value))
        *number = PyFloat_AsDouble(value);
    else if (PyLong_CheckExact(value))
        *number = PyLong_AsDouble(value);
    else
        return 0;
    return !(*number == -1 && PyErr_Occurred());
}

/* Packs the values of a dict into a message; 0 where Python has to, maybe with an exception. */
static int pack_metrics(Events *self, PyObject *values, PyObject *step, Message *message) {
    int is_at_event = step == Py_None;
    MetricsHead head = {1, !is_at_event, (uint16_t)PyDict_Size(values), self->written,
                        read_clock(CLOCK_REALTIME)};
    if (!is_at_event)
        head.moment = PyLong_CheckExact(step) ? PyLong_AsLongLong(step) : -1;
    if (!is_at_event && head.moment < 0)
        return 0;
    PyObject *keys = PySequence_Tuple(values);
    PyObject *names = keys ? PyDict_GetItemWithError(self->metric_names, keys) : NULL;
    Py_XDECREF(keys);
    Py_ssize_t place = 0, size = names ? PyBytes_Size(names) : -1;
    if (size < 0 || sizeof(head) + head.count * sizeof(double) + size > MAX_PAYLOAD)
        return 0;
    char *next = message->payload;
    memcpy(next, &head, sizeof(head));
    next += sizeof(head);
    int left = head.count;
    for (PyObject *name, *value; PyDict_Next(values, &place, &name, &value); left--) {
        double number;
        if (!left || !number_of(value, &number))
            return 0;
        memcpy(next, &number, sizeof(number));
        next += sizeof(number);
    }
    if (left)
        return 0;
    memcpy(next, PyBytes_AsString(names), size);
    message->length = (uint16_t)(next + size - message->payload);
    return 1;
}

static PyObject *quick_metrics(PyObject *bound, PyObject *const *given, Py_ssize_t count) {
    Events *self = events_of(bound);
    Message message = {0};
    /* Packing may run Python (a key's `__hash__`), and with it other threads: so who else writes is
       looked at after it. From there on no Python runs. */
    if (!is_plain(self) || !PyDict_CheckExact(given[0]) ||
        !pack_metrics(self, given[0], given[1], &message) || !self->message_slots ||
        self->message_writers)
        return retry_in_python_with_two(bound, given);
    char *ring = self->slots.buf, *slot;
    uint64_t number;
    memcpy(&number, ring + self->messages_counted_at, sizeof(number));
    slot = ring + self->messages_at + number % self->message_slots * sizeof(Message);
    number += 1;
    memcpy(slot, &message, offsetof(Message, number));
    __atomic_thread_fence(__ATOMIC_RELEASE); /* as in `put` */
    memcpy(slot + offsetof(Message, number), &number, sizeof(number));
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(ring + self->messages_counted_at, &number, sizeof(number));
    Py_RETURN_NONE;
}

#define FAST (PyCFunction)(void (*)(void))
static PyMethodDef shortcuts[] = {
    {"metrics", FAST quick_metrics, METH_FASTCALL, NULL},
    {"note", FAST quick_note, METH_FASTCALL, NULL},
    {"begin_fetch", quick_begin_fetch, METH_O, NULL},
    {"end_fetch", quick_end_fetch, METH_O, NULL},
    {"begin_to", FAST quick_begin_to, METH_FASTCALL, NULL},
    {"begin_cuda", FAST quick_begin_cuda, METH_FASTCALL, NULL},
    {"begin_copy_", FAST quick_begin_copy, METH_FASTCALL, NULL},
    {"begin_forward", quick_begin_forward, METH_O, NULL},
    {"end_forward", quick_end_forward, METH_O, NULL},
    {"begin_backward", quick_begin_backward, METH_O, NULL},
    {"end_backward", quick_end_backward, METH_O, NULL},
    {"begin_optimizer", quick_begin_optimizer, METH_O, NULL},
    {"end_optimizer", quick_end_optimizer, METH_O, NULL},
    {"enter_step", quick_enter_step, METH_O, NULL},
    {"exit_step", quick_exit_step, METH_O, NULL},
    {NULL, NULL, 0, NULL}};

static PyObject *shortcut_method(Events *self, PyObject *arguments) {
    const char *name;
    PyObject *slow;
    if (!PyArg_ParseTuple(arguments, "sO", &name, &slow))
        return NULL;
    for (PyMethodDef *each = shortcuts; each->ml_name; each++) {
        if (strcmp(each->ml_name, name))
            continue;
        PyObject *bound = PyTuple_Pack(2, (PyObject *)self, slow), *function;
        if (!bound)
            return NULL;
        function = PyCFunction_NewEx(each, bound, NULL);
        Py_DECREF(bound);
        return function;
    }
    return Py_NewRef(slow);
}

/* The type and the module */

static char nowhere[sizeof(Event)]; /* where events go until somebody says where */

static int events_traverse(Events *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->slots.obj);
#define VISIT(name) Py_VISIT(self->name);
    OBJECTS(VISIT)
    return 0;
}

static int events_clear(Events *self) {
#define CLEAR(name) Py_CLEAR(self->name);
    OBJECTS(CLEAR)
    return 0;
}

static void events_dealloc(Events *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    events_clear(self);
    PyBuffer_Release(&self->slots);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

#define MEMBER(name, type) {#name, type, offsetof(Events, name), 0, NULL},
#define NUMBER_MEMBER(name) MEMBER(name, T_LONGLONG)
#define FLAG_MEMBER(name) MEMBER(name, T_BOOL)
#define OBJECT_MEMBER(name) MEMBER(name, T_OBJECT_EX)
static PyMemberDef members[] = {
    NUMBERS(NUMBER_MEMBER) FLAGS(FLAG_MEMBER) OBJECTS(OBJECT_MEMBER)
    {"buffer", T_OBJECT, offsetof(Events, slots) + offsetof(Py_buffer, obj), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};

static PyMethodDef methods[] = {
    {"note", FAST note_method, METH_FASTCALL, NULL},
    {"note_boundary", FAST note_boundary_method, METH_FASTCALL, NULL},
    {"note_on_host", FAST note_on_host_method, METH_FASTCALL, NULL},
    {"note_collections", FAST note_collections_method, METH_FASTCALL, NULL},
    {"end_step", FAST end_step_method, METH_FASTCALL, NULL},
    {"begin_fetch", FAST begin_fetch_method, METH_FASTCALL, NULL},
    {"write_to", (PyCFunction)write_to_method, METH_VARARGS, NULL},
    {"shortcut", (PyCFunction)shortcut_method, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};

static PyObject *events_new(PyTypeObject *type, PyObject *given, PyObject *named) {
    Events *self = (Events *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self)
        return NULL;
    self->first_slot = nowhere;
#define NONE(name) self->name = Py_NewRef(Py_None);
    OBJECTS(NONE)
    return (PyObject *)self;
}

static PyType_Slot type_slots[] = {
    {Py_tp_dealloc, events_dealloc}, {Py_tp_traverse, events_traverse},
    {Py_tp_clear, events_clear},     {Py_tp_methods, methods},
    {Py_tp_members, members},        {Py_tp_new, events_new},
    {0, NULL}};

static PyType_Spec type_spec = {
    "traceml.trace._recorder.Events", sizeof(Events), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, type_slots};

/* Tells what of torch's the plain cases call: hooks.py does so before it makes any shortcut. */
static PyObject *use_torch(PyObject *module, PyObject *given) {
    PyObject **places[] = {&tensor_type, &is_grad_enabled, &function_modes, &dispatch_modes, &numel,
                           &item, &get_device, &detach, &stream_number, &graph_trees};
    Py_ssize_t count = sizeof(places) / sizeof(places[0]);
    if (PyTuple_Size(given) != count)
        return PyErr_Format(PyExc_TypeError, "%zd things of torch's are taken", count);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *before = *places[i];
        *places[i] = Py_NewRef(PyTuple_GetItem(given, i));
        Py_XDECREF(before);
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {{"use_torch", use_torch, METH_VARARGS, NULL},
                                  {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_recorder", NULL, -1, functions,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__recorder(void) {
    PyObject *known = PyImport_ImportModule("traceml.steps.events");
    for (int i = 0; known && i < CONSTANTS; i++) {
        constants[i] = as_number(PyObject_GetAttrString(known, constant_names[i]));
        if (PyErr_Occurred())
            Py_CLEAR(known);
    }
    if (!known)
        return NULL;
    Py_DECREF(known);
    mark_name = PyUnicode_InternFromString("mark");
    mark_boundary_name = PyUnicode_InternFromString("mark_boundary");
    training_name = PyUnicode_InternFromString("training");
    is_cpu_name = PyUnicode_InternFromString("is_cpu");
    is_cuda_name = PyUnicode_InternFromString("is_cuda");
    device_name = PyUnicode_InternFromString("device");
    shape_name = PyUnicode_InternFromString("shape");
    requires_grad_name = PyUnicode_InternFromString("requires_grad");
    base_name = PyUnicode_InternFromString("_base");
    version_name = PyUnicode_InternFromString("_version");
    PyObject *module = PyModule_Create(&definition), *type = PyType_FromSpec(&type_spec);
    if (!module || !type || PyErr_Occurred() || PyModule_AddObject(module, "Events", type) < 0 ||
        PyModule_AddIntConstant(module, "SOURCE_CRC", SOURCE_CRC) < 0) {
        Py_XDECREF(type);
        Py_CLEAR(module);
    }
    return module;
}
