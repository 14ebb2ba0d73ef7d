/* Streams and events as the caller sees them. */
#include "standin.h"

#include <stdlib.h>

enum { LEGACY = 1, PER_THREAD = 2, NON_BLOCKING = 1 };
enum { NO_TIMING = 2, INTERPROCESS = 4, EVENT_FLAGS = 7 };

static _Thread_local struct {
    uint64_t epoch;
    uintptr_t context;
    struct stream *stream;
} own;

static struct stream *per_thread_stream(void) {
    if (!own.stream || own.epoch != driver.epoch || own.context != current_context()) {
        own.epoch = driver.epoch;
        own.context = current_context();
        own.stream = stream_start(false, true);
    }
    return own.stream;
}

static struct stream *legacy_stream(void) {
    struct stream *stream = driver.running;
    while (stream && !(stream->legacy && stream->context == current_context())) {
        stream = stream->next;
    }
    return stream ? stream : stream_start(true, false);
}

struct stream *find_stream(uintptr_t id, int *error) {
    struct stream *stream = id == PER_THREAD ? per_thread_stream()
                            : id <= LEGACY   ? legacy_stream()
                                             : book_get(&driver.streams, id);
    if (!stream) {
        *error = refuse(INVALID_HANDLE, "stream %#zx is unknown or was destroyed", id);
    } else if (stream->context != current_context()) {
        *error = refuse(INVALID_CONTEXT, "stream %#zx belongs to another context", id);
    }
    return *error ? NULL : stream;
}

static struct event *find_event(uintptr_t id, int *error) {
    struct event *event = book_get(&driver.events, id);
    if (!event) {
        *error = refuse(INVALID_HANDLE, "event %#zx is unknown or was destroyed", id);
    } else if (event->context != current_context()) {
        *error = refuse(INVALID_CONTEXT, "event %#zx belongs to another context", id);
    }
    return *error ? NULL : event;
}

static int stream_create(uintptr_t *id, unsigned flags) {
    if (flags & ~(unsigned)NON_BLOCKING) {
        return refuse(INVALID_VALUE, "no stream flags %u", flags);
    }
    struct stream *stream = stream_start(false, !(flags & NON_BLOCKING));
    if (!stream) {
        return refuse(OPERATING_SYSTEM, "no thread for another stream");
    }
    book_add(&driver.streams, stream->id, stream->id + 1, stream);
    *id = stream->id;
    return SUCCESS;
}

API int cuStreamCreate(uintptr_t *id, unsigned flags) {
    int error = enter("cuStreamCreate", CONTEXT);
    return error ? error : leave(stream_create(id, flags));
}

/* Priorities say what should come first, never what must: all are equal here. */
API int cuStreamCreateWithPriority(uintptr_t *id, unsigned flags, int priority) {
    (void)priority;
    int error = enter("cuStreamCreateWithPriority", CONTEXT);
    return error ? error : leave(stream_create(id, flags));
}

/* What is enqueued is still done, as on the device. */
API int cuStreamDestroy_v2(uintptr_t id) {
    int error = enter("cuStreamDestroy", CONTEXT);
    if (error) {
        return error;
    }
    if (id <= PER_THREAD) {
        return leave(refuse(INVALID_HANDLE, "the default streams cannot be destroyed"));
    }
    struct stream *stream = find_stream(id, &error);
    if (stream) {
        stream->destroyed = true;
        book_remove(&driver.streams, id);
        pthread_cond_broadcast(&driver.changed);
    }
    return leave(error);
}

API int cuStreamSynchronize(uintptr_t id) {
    int error = enter("cuStreamSynchronize", CONTEXT);
    if (error) {
        return error;
    }
    struct stream *stream = find_stream(id, &error);
    return leave(stream ? stream_drain(stream) : error);
}

API int cuStreamQuery(uintptr_t id) {
    int error = enter("cuStreamQuery", CONTEXT);
    if (error) {
        return error;
    }
    struct stream *stream = find_stream(id, &error);
    return leave(error ? error : stream->head ? NOT_READY : SUCCESS);
}

static int wait_event(uintptr_t stream_id, uintptr_t event_id, unsigned flags) {
    int error = SUCCESS;
    struct stream *stream = find_stream(stream_id, &error);
    struct event *event = stream ? book_get(&driver.events, event_id) : NULL;
    if (error) {
        return error;
    }
    if (!event) {
        return refuse(INVALID_HANDLE, "event %#zx is unknown or was destroyed", event_id);
    }
    if (flags) {
        return refuse(INVALID_VALUE, "flags %u must be 0", flags);
    }
    if (!event->latest || event->latest->done) {
        return SUCCESS;
    }
    struct work *work = work_new(AWAIT, 0);
    work->recording = event->latest;
    work->recording->references++;
    stream_enqueue(stream, work);
    return SUCCESS;
}

API int cuStreamWaitEvent(uintptr_t stream, uintptr_t event, unsigned flags) {
    int error = enter("cuStreamWaitEvent", CONTEXT);
    return error ? error : leave(wait_event(stream, event, flags));
}

API int cuEventCreate(uintptr_t *id, unsigned flags) {
    int error = enter("cuEventCreate", CONTEXT);
    if (error) {
        return error;
    }
    bool untimed = flags & NO_TIMING;
    if (flags & ~(unsigned)EVENT_FLAGS || (flags & INTERPROCESS && !untimed)) {
        return leave(refuse(INVALID_VALUE, "no event flags %u", flags));
    }
    struct event *event = calloc(1, sizeof *event);
    event->flags = flags;
    event->context = current_context();
    *id = new_id();
    book_add(&driver.events, *id, *id + 1, event);
    return leave(SUCCESS);
}

static int event_record(uintptr_t event_id, uintptr_t stream_id) {
    int error = SUCCESS;
    struct event *event = find_event(event_id, &error);
    struct stream *stream = event ? find_stream(stream_id, &error) : NULL;
    if (error) {
        return error;
    }
    struct work *work = work_new(RECORD, 0);
    work->recording = calloc(1, sizeof *work->recording);
    work->recording->references = 2; /* of the work, and as the event's newest */
    recording_drop(event->latest);
    event->latest = work->recording;
    stream_enqueue(stream, work);
    return SUCCESS;
}

API int cuEventRecord(uintptr_t event, uintptr_t stream) {
    int error = enter("cuEventRecord", CONTEXT);
    return error ? error : leave(event_record(event, stream));
}

API int cuEventQuery(uintptr_t id) {
    int error = enter("cuEventQuery", CONTEXT);
    if (error) {
        return error;
    }
    struct event *event = find_event(id, &error);
    if (!error && event->latest && !event->latest->done) {
        error = NOT_READY;
    }
    return leave(error);
}

API int cuEventSynchronize(uintptr_t id) {
    int error = enter("cuEventSynchronize", CONTEXT);
    if (error) {
        return error;
    }
    struct event *event = find_event(id, &error);
    if (!error && event->latest) {
        error = recording_await(event->latest);
    }
    return leave(error);
}

static int elapsed(float *milliseconds, uintptr_t first, uintptr_t second) {
    int error = SUCCESS;
    struct event *from = find_event(first, &error);
    struct event *to = from ? find_event(second, &error) : NULL;
    if (error) {
        return error;
    }
    if (!from->latest || !to->latest || (from->flags | to->flags) & NO_TIMING) {
        return refuse(INVALID_HANDLE, "an event was not recorded, or made without timing");
    }
    if (!from->latest->done || !to->latest->done) {
        return NOT_READY;
    }
    *milliseconds = (float)(1e3 * seconds_between(from->latest->at, to->latest->at));
    return SUCCESS;
}

API int cuEventElapsedTime_v2(float *milliseconds, uintptr_t first, uintptr_t second) {
    int error = enter("cuEventElapsedTime", CONTEXT);
    return error ? error : leave(elapsed(milliseconds, first, second));
}

API int cuEventElapsedTime(float *milliseconds, uintptr_t first, uintptr_t second) {
    return cuEventElapsedTime_v2(milliseconds, first, second);
}

API int cuEventDestroy_v2(uintptr_t id) {
    int error = enter("cuEventDestroy", CONTEXT);
    if (error) {
        return error;
    }
    struct event *event = find_event(id, &error);
    if (event) {
        recording_drop(event->latest);
        free(event);
        book_remove(&driver.events, id);
    }
    return leave(error);
}

/* With per-thread default streams, stream 0 is the calling thread's own. */
static uintptr_t per_thread(uintptr_t stream) {
    return stream ? stream : PER_THREAD;
}

API int cuStreamSynchronize_ptsz(uintptr_t stream) {
    return cuStreamSynchronize(per_thread(stream));
}

API int cuStreamQuery_ptsz(uintptr_t stream) {
    return cuStreamQuery(per_thread(stream));
}

API int cuStreamWaitEvent_ptsz(uintptr_t stream, uintptr_t event, unsigned flags) {
    return cuStreamWaitEvent(per_thread(stream), event, flags);
}

API int cuEventRecord_ptsz(uintptr_t event, uintptr_t stream) {
    return cuEventRecord(event, per_thread(stream));
}
