/* Sorted lists of disjoint ranges. */
#include "standin.h"

#include <stdlib.h>
#include <string.h>

/* The place of the first span that ends after `address`. */
static size_t place(const struct book *book, uintptr_t address) {
    size_t low = 0, high = book->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (book->spans[middle].end > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

struct span *book_overlap(const struct book *book, uintptr_t start, uintptr_t end) {
    size_t at = place(book, start);
    return at < book->count && book->spans[at].start < end ? &book->spans[at] : NULL;
}

struct span *book_at(const struct book *book, uintptr_t address) {
    return book_overlap(book, address, address + 1);
}

void *book_get(const struct book *book, uintptr_t id) {
    struct span *span = book_at(book, id);
    return span ? span->what : NULL;
}

void book_add(struct book *book, uintptr_t start, uintptr_t end, void *what) {
    if (book->count == book->room) {
        book->room = book->room ? 2 * book->room : 64;
        book->spans = realloc(book->spans, book->room * sizeof(struct span));
        if (!book->spans) {
            abort();
        }
    }
    size_t at = place(book, start);
    memmove(&book->spans[at + 1], &book->spans[at], (book->count - at) * sizeof(struct span));
    book->spans[at] = (struct span){start, end, what};
    book->count++;
}

void book_remove(struct book *book, uintptr_t start) {
    size_t at = place(book, start);
    book->count--;
    memmove(&book->spans[at], &book->spans[at + 1], (book->count - at) * sizeof(struct span));
}

void book_clear(struct book *book, bool free_what) {
    for (size_t i = 0; free_what && i < book->count; i++) {
        free(book->spans[i].what);
    }
    free(book->spans);
    *book = (struct book){0};
}
