/* One device for several processes: a file that all of them map lists who holds which memory.
 *
 * A process has a place in it, by a lock that ends with the process, however that ends: what a
 * dead one held counts no more. Memory that several hold counts once. Exported memory counts for
 * as long as a file descriptor of it is open anywhere, on its way through a socket too: it has a
 * lock that ends with the last one, and the kernel lists all locks.
 */
#include "standin.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PLACES = 32, ENTRIES = 1 << 16, ADRIFT = -1 };

struct entry {
    ino_t inode;
    size_t bytes;
    int device, place; /* ADRIFT: no process has a handle */
    bool exported;
};
struct table {
    size_t count;
    struct entry entries[ENTRIES];
};
static struct table *table; /* NULL: this process has a device of its own */
static int file, place;
static bool locked;

/* Byte 0 is for the table, each further one for a place. */
static bool lock(off_t byte, int how, short type, struct flock *answer) {
    struct flock wanted = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    bool done = !fcntl(file, how, &wanted);
    if (answer) {
        *answer = wanted;
    }
    return done;
}

static void begin(void) {
    if (table && !locked) {
        locked = lock(0, F_OFD_SETLKW, F_WRLCK, NULL);
    }
}

void shared_end(void) {
    if (locked) {
        locked = !lock(0, F_OFD_SETLK, F_UNLCK, NULL);
    }
}

static bool lives(int other) {
    struct flock holder;
    return !lock(1 + other, F_OFD_GETLK, F_WRLCK, &holder) || holder.l_type != F_UNLCK;
}

static void forget(size_t i) {
    table->entries[i] = table->entries[--table->count];
}

/* Its process has it no more. */
static void let_go(size_t i) {
    if (table->entries[i].exported) {
        table->entries[i].place = ADRIFT;
    } else {
        forget(i);
    }
}

/* Forget what is adrift and of which no file descriptor is left. */
static void sink(void) {
    static bool floats[ENTRIES];
    bool any = false;
    for (size_t i = 0; i < table->count; i++) {
        floats[i] = table->entries[i].place != ADRIFT;
        any |= !floats[i];
    }
    FILE *locks = any ? fopen("/proc/locks", "re") : NULL;
    char line[256];
    while (locks && fgets(line, sizeof line, locks)) {
        unsigned long inode;
        if (sscanf(line, "%*d: OFDLCK %*s %*s %*d %*x:%*x:%lu", &inode) < 1) {
            continue;
        }
        for (size_t i = 0; i < table->count; i++) {
            floats[i] |= table->entries[i].inode == inode;
        }
    }
    if (locks) {
        fclose(locks);
    }
    for (size_t i = table->count; any && i-- > 0;) {
        if (!floats[i]) {
            forget(i);
        }
    }
}

/* What the dead held. The lock of this process's own place does not stand in its way. */
static void bury(void) {
    bool known[PLACES] = {0}, dead[PLACES] = {0};
    for (size_t i = table->count; i-- > 0;) {
        int other = table->entries[i].place;
        if (other == ADRIFT) {
            continue;
        }
        if (!known[other]) {
            known[other] = true;
            dead[other] = other != place && !lives(other);
        }
        if (dead[other]) {
            let_go(i);
        }
    }
    sink();
}

static bool held_before(size_t i) {
    for (size_t j = 0; j < table->count; j++) {
        bool ours = table->entries[j].place == place;
        if (table->entries[j].inode == table->entries[i].inode && (j < i || ours)) {
            return true;
        }
    }
    return false;
}

size_t shared_elsewhere(int device) {
    if (!table) {
        return 0;
    }
    begin();
    bury();
    size_t bytes = 0;
    for (size_t i = 0; i < table->count; i++) {
        struct entry *entry = &table->entries[i];
        if (entry->place != place && entry->device == device && !held_before(i)) {
            bytes += entry->bytes;
        }
    }
    return bytes;
}

bool shared_knows(ino_t inode) {
    begin();
    for (size_t i = 0; table && i < table->count; i++) {
        if (table->entries[i].inode == inode) {
            return true;
        }
    }
    return false;
}

bool shared_add(const struct memory *memory) {
    begin();
    if (table && table->count == ENTRIES) {
        return false;
    }
    if (table) {
        table->entries[table->count++] =
            (struct entry){memory->inode, memory->bytes, memory->device, place, false};
    }
    return true;
}

void shared_export(const struct memory *memory) {
    begin();
    for (size_t i = 0; table && i < table->count; i++) {
        struct entry *entry = &table->entries[i];
        if (entry->place == place && entry->inode == memory->inode && !entry->exported) {
            struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
            entry->exported = true;
            fcntl(memory->fd, F_OFD_SETLK, &whole); /* what was imported has it already */
        }
    }
}

void shared_drop(const struct memory *memory) {
    begin();
    for (size_t i = 0; table && i < table->count; i++) {
        struct entry *entry = &table->entries[i];
        if (entry->place == place && entry->inode == memory->inode) {
            let_go(i);
            return;
        }
    }
}

bool shared_attach(const char *path) {
    file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof *table)) {
        return false;
    }
    for (place = 0; place < PLACES && !lock(1 + place, F_OFD_SETLK, F_WRLCK, NULL);) {
        place++;
    }
    void *mapped = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (place == PLACES || mapped == MAP_FAILED) {
        close(file);
        return false;
    }
    table = mapped;
    begin();
    for (size_t i = table->count; i-- > 0;) {
        if (table->entries[i].place == place) {
            let_go(i); /* of a dead one that had our place */
        }
    }
    shared_end();
    return true;
}

void shared_detach(void) {
    if (table) {
        shared_end();
        munmap(table, sizeof *table);
        close(file);
        table = NULL;
    }
}
