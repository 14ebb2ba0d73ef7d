/* Copies and fills, checked when they are enqueued. */
#include "standin.h"

#include <stdlib.h>

enum { IN_STREAM_ORDER = 1, DURING_CALL = 2, ANY_ORDER = 3 };

static int check_piece(const struct piece *piece, bool *pageable) {
    enum place to, from;
    int error = check_reach(piece->dst, piece->bytes, WRITE, &to);
    if (!error) {
        error = check_reach(piece->src, piece->bytes, READ, &from);
    }
    if (error) {
        return error;
    }
    if (piece->src < piece->dst + piece->bytes && piece->dst < piece->src + piece->bytes) {
        return refuse(INVALID_VALUE, "source %#zx and destination %#zx overlap over %zu bytes",
                      piece->src, piece->dst, piece->bytes);
    }
    *pageable |= to == PAGEABLE || from == PAGEABLE;
    return SUCCESS;
}

/* As on the device, a copy of host memory that is not registered is over when the call ends. */
static int enqueue_copy(struct stream *stream, struct work *work, bool pageable) {
    stream_enqueue(stream, work);
    return pageable ? stream_drain(stream) : SUCCESS;
}

static int copy_one(uintptr_t dst, uintptr_t src, size_t bytes, uintptr_t stream_id) {
    int error = SUCCESS;
    bool pageable = false;
    struct piece piece = {dst, src, bytes, false};
    struct stream *stream = find_stream(stream_id, &error);
    if (!error && bytes) {
        error = check_piece(&piece, &pageable);
    }
    if (error || !bytes) {
        return error;
    }
    struct work *work = work_new(COPY, 1);
    work->pieces[0] = piece;
    return enqueue_copy(stream, work, pageable);
}

API int cuMemcpyAsync(uintptr_t dst, uintptr_t src, size_t bytes, uintptr_t stream) {
    int error = enter("cuMemcpyAsync", CONTEXT);
    return error ? error : leave(copy_one(dst, src, bytes, stream));
}

struct end {
    uintptr_t start, end;
    bool written;
};

static int by_start(const void *left, const void *right) {
    uintptr_t a = ((const struct end *)left)->start, b = ((const struct end *)right)->start;
    return (a > b) - (a < b);
}

/* The order of copies within a batch is undefined, so none may touch what another writes. */
static int check_independent(const struct work *work) {
    size_t count = 2 * work->count;
    struct end *ends = malloc(count * sizeof *ends);
    for (size_t i = 0; i < work->count; i++) {
        const struct piece *piece = &work->pieces[i];
        ends[2 * i] = (struct end){piece->dst, piece->dst + piece->bytes, true};
        ends[2 * i + 1] = (struct end){piece->src, piece->src + piece->bytes, false};
    }
    qsort(ends, count, sizeof *ends, by_start);
    int error = SUCCESS;
    uintptr_t written = 0, touched = 0;
    for (size_t i = 0; !error && i < count; i++) {
        if (ends[i].start < (ends[i].written ? touched : written)) {
            error = refuse(INVALID_VALUE, "copies of one batch meet at %#zx", ends[i].start);
        }
        touched = ends[i].end > touched ? ends[i].end : touched;
        written = ends[i].written && ends[i].end > written ? ends[i].end : written;
    }
    free(ends);
    return error;
}

static int check_attributes(size_t count, const struct copy_attributes *attributes,
                            const size_t *firsts, size_t kinds) {
    if (!attributes || !firsts || !kinds || kinds > count || firsts[0] != 0) {
        return refuse(INVALID_VALUE, "the first of %zu attributes must be for copy 0", kinds);
    }
    for (size_t i = 0; i < kinds; i++) {
        if ((i && firsts[i] <= firsts[i - 1]) || firsts[i] >= count) {
            return refuse(INVALID_VALUE, "attribute %zu starts at copy %zu of %zu", i, firsts[i],
                          count);
        }
        int order = attributes[i].source_order;
        if (order < IN_STREAM_ORDER || order > ANY_ORDER || attributes[i].flags > 1) {
            return refuse(INVALID_VALUE, "attribute %zu has source order %d, flags %u", i, order,
                          attributes[i].flags);
        }
    }
    return SUCCESS;
}

/* A source that is not read in stream order: before the call ends, or whenever. */
static int settle_source(struct piece *piece, int order) {
    if (order == IN_STREAM_ORDER) {
        return SUCCESS;
    }
    uintptr_t stream = busy(piece->src, piece->bytes, true);
    if (stream) {
        return refuse(INVALID_VALUE, "source %#zx is read at once, but stream %#zx writes to it",
                      piece->src, stream);
    }
    if (order == DURING_CALL) {
        uintptr_t staging = (uintptr_t)malloc(piece->bytes);
        if (!staging || move_bytes(staging, piece->src, piece->bytes)) {
            free((void *)staging);
            return refuse(INVALID_VALUE, "source %#zx cannot be read", piece->src);
        }
        piece->src = staging;
        piece->staged = true;
    }
    return SUCCESS;
}

static int check_batch(struct work *work, const struct copy_attributes *attributes,
                       const size_t *firsts, size_t kinds, bool *pageable) {
    int error = check_attributes(work->count, attributes, firsts, kinds);
    for (size_t i = 0; !error && i < work->count; i++) {
        error = work->pieces[i].bytes ? check_piece(&work->pieces[i], pageable)
                                      : refuse(INVALID_VALUE, "copy %zu has no bytes", i);
    }
    if (!error) {
        error = check_independent(work);
    }
    for (size_t i = 0, kind = 0; !error && i < work->count; i++) {
        kind += kind + 1 < kinds && firsts[kind + 1] == i;
        error = settle_source(&work->pieces[i], attributes[kind].source_order);
    }
    return error;
}

static int copy_batch(const uintptr_t *dsts, const uintptr_t *srcs, const size_t *sizes,
                      size_t count, const struct copy_attributes *attributes, const size_t *firsts,
                      size_t kinds, uintptr_t stream_id) {
    int error = SUCCESS;
    bool pageable = false;
    if (stream_id <= 1 || !count || !dsts || !srcs || !sizes) {
        return refuse(INVALID_VALUE, "an empty batch, or one in the legacy stream");
    }
    struct stream *stream = find_stream(stream_id, &error);
    if (error) {
        return error;
    }
    struct work *work = work_new(COPY, count);
    for (size_t i = 0; i < count; i++) {
        work->pieces[i] = (struct piece){dsts[i], srcs[i], sizes[i], false};
    }
    error = check_batch(work, attributes, firsts, kinds, &pageable);
    if (error) {
        work_free(work);
        return error;
    }
    return enqueue_copy(stream, work, pageable);
}

API int cuMemcpyBatchAsync_v2(const uintptr_t *dsts, const uintptr_t *srcs, const size_t *sizes,
                              size_t count, const struct copy_attributes *attributes,
                              const size_t *firsts, size_t kinds, uintptr_t stream) {
    int error = enter("cuMemcpyBatchAsync", CONTEXT);
    return error ? error
                 : leave(copy_batch(dsts, srcs, sizes, count, attributes, firsts, kinds, stream));
}

static int fill(uintptr_t dst, unsigned char byte, size_t bytes, uintptr_t stream_id) {
    int error = SUCCESS;
    enum place place = DEVICE;
    struct stream *stream = find_stream(stream_id, &error);
    if (!error && bytes) {
        error = check_reach(dst, bytes, WRITE, &place);
    }
    if (!error && place != DEVICE) {
        error = refuse(INVALID_VALUE, "%#zx is not device memory", dst);
    }
    if (error || !bytes) {
        return error;
    }
    struct work *work = work_new(FILL, 1);
    work->byte = byte;
    work->pieces[0] = (struct piece){dst, 0, bytes, false};
    stream_enqueue(stream, work);
    return SUCCESS;
}

API int cuMemsetD8Async(uintptr_t dst, unsigned char byte, size_t bytes, uintptr_t stream) {
    int error = enter("cuMemsetD8Async", CONTEXT);
    return error ? error : leave(fill(dst, byte, bytes, stream));
}

/* With per-thread default streams, stream 0 is the calling thread's own. */
API int cuMemcpyAsync_ptsz(uintptr_t dst, uintptr_t src, size_t bytes, uintptr_t stream) {
    return cuMemcpyAsync(dst, src, bytes, stream ? stream : 2);
}

API int cuMemcpyBatchAsync_v2_ptsz(const uintptr_t *dsts, const uintptr_t *srcs,
                                   const size_t *sizes, size_t count,
                                   const struct copy_attributes *attributes, const size_t *firsts,
                                   size_t kinds, uintptr_t stream) {
    return cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attributes, firsts, kinds,
                                 stream ? stream : 2);
}

API int cuMemsetD8Async_ptsz(uintptr_t dst, unsigned char byte, size_t bytes, uintptr_t stream) {
    return cuMemsetD8Async(dst, byte, bytes, stream ? stream : 2);
}
