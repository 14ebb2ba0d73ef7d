/* A strict stand-in for NVIDIA's driver library, for tests on a machine without a GPU.
 *
 * Device memory is memfd pages at fixed host addresses, so a device pointer is a host pointer
 * and memory that is not mapped, or has no access set, faults. A stream is a thread with a
 * queue. Whatever the real driver leaves undefined is refused, with a line that says why.
 *
 * One lock guards everything in `driver`. Threads of streams drop it while bytes move.
 */
#ifndef STANDIN_H
#define STANDIN_H

#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define API __attribute__((visibility("default")))

/* The library is loaded globally: its own names must not meet those of other libraries. */
#pragma GCC visibility push(hidden)

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEINITIALIZED = 4,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    PEER_ACCESS_UNSUPPORTED = 217,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    NOT_SUPPORTED = 801,
};

enum { MAX_DEVICES = 4, CONTEXT_DEPTH = 16 };

/* Access as CUDA numbers it: 3 is reading and writing. */
enum access { NO_ACCESS = 0, READ = 1, WRITE = 3 };

/* A sorted list of disjoint ranges: of addresses, or of ids (then `end` is `start` + 1). */
struct span {
    uintptr_t start, end;
    void *what;
};
struct book {
    struct span *spans;
    size_t count, room;
};
void book_add(struct book *book, uintptr_t start, uintptr_t end, void *what);
void book_remove(struct book *book, uintptr_t start);
void book_clear(struct book *book, bool free_what);
struct span *book_at(const struct book *book, uintptr_t address);
struct span *book_overlap(const struct book *book, uintptr_t start, uintptr_t end);
void *book_get(const struct book *book, uintptr_t id);

/* Physical memory: one memfd. It lives while a handle of any process refers to it, or a file
 * descriptor that was exported, wherever that is. */
struct memory {
    int fd, device;
    int handles;
    size_t bytes;
    ino_t inode;
};
struct handle {
    struct memory *memory;
    int mappings;
    bool exportable, imported;
};
struct mapping {
    struct memory *memory;
    struct handle *handle; /* NULL: of cuMemAlloc */
    enum access access[MAX_DEVICES];
};

/* One cuEventRecord. A wait refers to the recording that was newest when it was enqueued. */
struct recording {
    int references;
    bool done;
    struct timespec at;
};
struct event {
    unsigned flags;
    uintptr_t context;
    struct recording *latest;
};

struct piece {
    uintptr_t dst, src;
    size_t bytes;
    bool staged; /* `src` is our own copy of the source */
};
enum kind { COPY, FILL, RECORD, AWAIT, MARK };
struct work {
    struct work *next;
    enum kind kind;
    uint64_t ticket; /* rises over all streams */
    struct recording *recording;
    int byte;
    size_t count;
    struct piece pieces[];
};
struct stream {
    struct stream *next;
    uintptr_t id, context;
    uint64_t epoch;
    bool legacy, blocking, destroyed;
    int waiters;
    struct work *head, **tail;
};

struct device {
    int retains;
    uintptr_t context; /* 0: not active. A new one each time, so that a stale one shows. */
    size_t used;
    bool reaches[MAX_DEVICES]; /* whose memory it may reach: enabled, and not released since */
};

struct driver {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t epoch; /* counts resets */
    bool forked, started, resetting;
    int sticky; /* the error that every later call returns */

    size_t total, granularity;
    int devices;
    bool vmm_supported, strict_host, shareable, peers;
    int version;
    double delay_s, pace_bytes_per_s;

    struct device device[MAX_DEVICES];
    struct book reservations, mappings, allocations, registrations, handles, streams, events;
    struct stream *running; /* also destroyed ones that still have work */
    int threads;
    uint64_t tickets;
    uintptr_t ids;
};
extern struct driver driver;

/* gate.c: every call passes here. */
enum need { NOTHING, INIT, CONTEXT, VMM };
int enter(const char *name, enum need need); /* holds the lock on success */
int leave(int result);
int refuse(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
void gate_clear(void);
uintptr_t new_id(void);

/* names.c */
bool known_name(const char *name);

/* device.c */
int device_of(uintptr_t context); /* -1: unknown or released */
int current_device(void); /* -1: none, or its context was released */
uintptr_t current_context(void);
int check_device(int id);
int check_reached(int id);

/* memory.c */
struct memory *memory_new(size_t bytes, int device); /* NULL: errno says why */
void memory_drop(struct memory *memory);
int check_budget(size_t bytes, int device);
int find_handle(uintptr_t id, struct handle **found);

/* shared.c: the device is also other processes'. What asks holds the file until it leaves. */
bool shared_attach(const char *path);
void shared_detach(void);
void shared_end(void);
size_t shared_elsewhere(int device);
bool shared_knows(ino_t inode);
bool shared_add(const struct memory *memory);
void shared_drop(const struct memory *memory);
void shared_export(const struct memory *memory);

/* mapping.c */
int check_range(uintptr_t start, size_t bytes);
int check_idle(uintptr_t start, size_t bytes);
uintptr_t reserve(size_t bytes, size_t alignment, uintptr_t wish); /* 0: no addresses */
bool back_by(uintptr_t start, const struct memory *memory);
bool protect(const struct span *span);
enum place { DEVICE, REGISTERED, PAGEABLE };
int check_device_reach(int device, uintptr_t start, size_t bytes, enum access need);
int check_reach(uintptr_t start, size_t bytes, enum access need, enum place *place);

/* alloc.c */
void memory_clear(void);

/* work.c: what streams do. */
struct stream *stream_start(bool legacy, bool blocking);
void stream_enqueue(struct stream *stream, struct work *work);
int stream_drain(struct stream *stream);
int stream_await(struct stream *stream, uint64_t ticket);
int recording_await(struct recording *recording);
void recording_drop(struct recording *recording);
struct work *work_new(enum kind kind, size_t count);
void work_free(struct work *work);
uintptr_t busy(uintptr_t start, size_t bytes, bool writes_only);
int move_bytes(uintptr_t dst, uintptr_t src, size_t bytes);
struct timespec now(void);
double seconds_between(struct timespec from, struct timespec to);

/* streams.c */
struct stream *find_stream(uintptr_t id, int *error);

#pragma GCC visibility pop

/* What the binding passes, as the CUDA driver API lays it out. */
struct location {
    int type, id;
};
struct allocation_prop {
    int type, handle_types;
    struct location location;
    void *win32;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
};
struct access_desc {
    struct location location;
    int flags;
};
struct copy_attributes {
    int source_order;
    struct location source_hint, destination_hint;
    unsigned flags;
};
_Static_assert(sizeof(struct allocation_prop) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(struct access_desc) == 12, "CUmemAccessDesc");
_Static_assert(sizeof(struct copy_attributes) == 24, "CUmemcpyAttributes");
enum { PINNED = 1, ON_DEVICE = 1, POSIX_FD = 1 };

#endif
