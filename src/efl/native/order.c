/* Coordinates in the order of a field, and back, as wire/coordinate_order.py does it in NumPy. */
#include "order.h"

#include <stdlib.h>

#define WORD 64 /* bits */

/* Numbers below ``n`` as a row of bits, and how many of them lie below each word of it. */
typedef struct {
    int64_t words;
    uint64_t *bits;
    uint32_t *below;
} Set;

static int empty_set(Set *set, int64_t n) {
    set->words = n / WORD + 1;
    set->bits = calloc((size_t)set->words, sizeof *set->bits);
    set->below = malloc((size_t)set->words * sizeof *set->below);
    return set->bits && set->below;
}

static void free_set(Set *set) {
    free(set->bits);
    free(set->below);
}

/* Sort numbers below ``n``, each at most once: where each was, in ``order``. */
static void sort(Set *set, const int32_t *numbers, int64_t count, int64_t *restrict sorted, int64_t *restrict order) {
    for (int64_t i = 0; i < count; i++) set->bits[(uint32_t)numbers[i] / WORD] |= 1ULL << (uint32_t)numbers[i] % WORD;
    uint32_t sum = 0;
    for (int64_t word = 0; word < set->words; word++) {
        set->below[word] = sum;
        for (uint64_t left = set->bits[word]; left; left &= left - 1)
            sorted[sum++] = word * WORD + __builtin_ctzll(left);
    }
    for (int64_t i = 0; i < count; i++) {
        const uint32_t word = (uint32_t)numbers[i] / WORD;
        const uint64_t lower = set->bits[word] & ((1ULL << (uint32_t)numbers[i] % WORD) - 1);
        order[set->below[word] + (uint32_t)__builtin_popcountll(lower)] = i;
    }
}

/* The places of increasing positions; 0, if there are others. */
int32_t efl_places(const Order *order, const int64_t *positions, int64_t count, int32_t *restrict places) {
    int64_t tensor = 0, row = 0, begin = 0, columns = 0; /* of the row that the last position was in */
    const Tensor *in = order->tensor;
    for (int64_t i = 0; i < count; i++) {
        if ((uint64_t)(positions[i] - begin) >= (uint64_t)columns) {
            while (tensor < order->tensors && positions[i] >= order->tensor[tensor].end) tensor++;
            if (tensor == order->tensors || positions[i] < order->tensor[tensor].begin) return 0;
            in = order->tensor + tensor;
            columns = in->columns;
            row = (positions[i] - in->begin) / columns;
            begin = in->begin + row * columns;
            row += in->first_row;
        }
        const int64_t column = in->first_column + positions[i] - begin;
        const int64_t cell = in->first_cell + order->row_group[row] * in->groups + order->column_group[column];
        places[i] = order->begin[cell] + order->row_rank[row] * order->width[cell] + order->column_rank[column];
    }
    return 1;
}

/* The positions of increasing places; 0, if there are others. */
int32_t efl_positions(const Order *order, const int64_t *places, int64_t count, int32_t *restrict positions) {
    int64_t next = 0, cell = 0, end = 0, begin = 0, width = 0, start = 0; /* of the row that the last place was in */
    const int32_t *columns = order->columns;
    for (int64_t i = 0; i < count; i++) {
        if ((uint64_t)(places[i] - begin) >= (uint64_t)width) {
            if (places[i] < begin || places[i] >= order->n) return 0;
            for (; places[i] >= end; next++) {
                cell = order->order[next];
                end = next + 1 < order->cells ? order->begin[order->order[next + 1]] : order->n;
            }
            const Tensor *in = order->tensor + order->of[cell];
            const int64_t row = (places[i] - order->begin[cell]) / order->width[cell];
            width = order->width[cell];
            begin = order->begin[cell] + row * width;
            columns = order->columns + order->first_column[cell];
            start = in->begin + order->rows[order->first_row[cell] + row] * in->columns;
        }
        positions[i] = (int32_t)start + columns[places[i] - begin];
    }
    return 1;
}

/* Increasing positions as places in order, and where each was; 0, if there is no memory, or they are none. */
int32_t efl_placed(const Order *order, const int64_t *positions, int64_t count, int64_t *sorted, int64_t *which) {
    Set set = {0};
    int32_t *places = malloc((size_t)count * sizeof *places + 1);
    const int done = empty_set(&set, order->n) && places && efl_places(order, positions, count, places);
    if (done) sort(&set, places, count, sorted, which);
    free(places);
    free_set(&set);
    return done;
}

int32_t efl_located(const Order *order, const int64_t *places, int64_t count, int64_t *sorted, int64_t *which) {
    Set set = {0};
    int32_t *positions = malloc((size_t)count * sizeof *positions + 1);
    const int done = empty_set(&set, order->n) && positions && efl_positions(order, places, count, positions);
    if (done) sort(&set, positions, count, sorted, which);
    free(positions);
    free_set(&set);
    return done;
}
