/* Coordinates that are not zero: made, found, added, sorted, and sorted into classes, as wire/sparse.py and
 * wire/coordinate_order.py do it in NumPy. */
#include <stdint.h>
#include <stdlib.h>

#define WORD 64   /* bits */
#define LANES 8   /* partial sums of squares, as in wire/sparse.py */
#define BLOCK 512 /* codes that are made at once */

/* The sum of squares, in double precision, of every so many-th number by itself first. */
double efl_squares(const float *numbers, int64_t n) {
    double sums[LANES] = {0};
    const int64_t whole = n / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int64_t lane = 0; lane < LANES; lane++) sums[lane] += (double)numbers[i + lane] * numbers[i + lane];
    for (int64_t i = whole; i < n; i++) sums[i - whole] += (double)numbers[i] * numbers[i];
    double total = 0;
    for (int64_t lane = 0; lane < LANES; lane++) total += sums[lane];
    return total;
}

/* Numbers over ``step``, plus noise, rounded down: those that are not zero, and where; both have room for ``n``. */
int64_t efl_round_down(const float *numbers, const float *noise, int64_t n, float step, int64_t *restrict positions,
                       int32_t *restrict codes) {
    int32_t block[BLOCK];
    int64_t count = 0;
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t some = n - first < BLOCK ? n - first : BLOCK;
        for (int64_t i = 0; i < some; i++) {
            const float number = numbers[first + i] / step + noise[first + i];
            const int32_t code = (int32_t)number; /* rounded towards zero */
            block[i] = code - ((float)code > number);
        }
        for (int64_t i = 0; i < some; i++) {
            positions[count] = first + i;
            codes[count] = block[i];
            count += block[i] != 0;
        }
    }
    return count;
}

/* Add ``weight`` times some numbers at their positions among ``n``; 1, if one lies outside. */
int32_t efl_add_at(float *restrict total, int64_t n, const int64_t *positions, const float *numbers, int64_t count,
                   float weight) {
    for (int64_t i = 0; i < count; i++) {
        if ((uint64_t)positions[i] >= (uint64_t)n) return 1;
        total[positions[i]] += numbers[i] * weight;
    }
    return 0;
}

/* Add numbers, each times the sign at its position among ``n``, by the remainders of their positions; 1, if one lies
 * outside. */
int32_t efl_sum_by_remainder(const int64_t *positions, const float *numbers, int64_t count, const float *signs,
                             int64_t n, int64_t width, double *restrict sums) {
    for (int64_t i = 0, begin = 0; i < count; i++) {
        if ((uint64_t)positions[i] >= (uint64_t)n) return 1;
        if (positions[i] < begin || positions[i] >= begin + width) begin = positions[i] / width * width;
        sums[positions[i] - begin] += (double)(numbers[i] * signs[positions[i]]);
    }
    return 0;
}

/* Where codes are not zero, and what they are there; both have room for ``n``. Returns how many there are. */
int64_t efl_non_zeros(const int32_t *codes, int64_t n, int64_t *restrict positions, int32_t *restrict found) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        positions[count] = i;
        found[count] = codes[i];
        count += codes[i] != 0;
    }
    return count;
}

/* Numbers from 0 to ``most``, each at most once, in order, and where each was; 0, if there is no memory.
 *
 * They are marked in a row of bits; how many bits lie below one is its rank. */
int32_t efl_in_order(const int64_t *numbers, int64_t count, int64_t most, int64_t *restrict sorted,
                     int64_t *restrict order) {
    const int64_t words = most / WORD + 1;
    uint64_t *bits = calloc((size_t)words, sizeof *bits);
    int64_t *below = malloc((size_t)words * sizeof *below);
    if (bits && below) {
        for (int64_t i = 0; i < count; i++) bits[numbers[i] / WORD] |= 1ULL << numbers[i] % WORD;
        for (int64_t word = 0, sum = 0; word < words; word++) {
            below[word] = sum;
            sum += __builtin_popcountll(bits[word]);
        }
        for (int64_t i = 0; i < count; i++) {
            const int64_t word = numbers[i] / WORD;
            const uint64_t lower = bits[word] & ((1ULL << numbers[i] % WORD) - 1);
            const int64_t rank = below[word] + __builtin_popcountll(lower);
            sorted[rank] = numbers[i];
            order[rank] = i;
        }
    }
    const int32_t done = bits && below;
    free(bits);
    free(below);
    return done;
}

/* The places of increasing positions within one tensor of so many columns, from the tables of its rows and columns;
 * ``start`` is where each cell begins, row group by row group. */
void efl_places(const int64_t *positions, int64_t count, int64_t first, int64_t columns, const int64_t *row_group,
                const int64_t *row_rank, const int64_t *column_group, const int64_t *column_rank,
                const int64_t *column_size, int64_t column_groups, const int64_t *start, int64_t *restrict places) {
    int64_t row = 0, begin = first; /* of the row that the last position was in */
    for (int64_t i = 0; i < count; i++) {
        if (positions[i] >= begin + columns) {
            row = (positions[i] - first) / columns;
            begin = first + row * columns;
        }
        const int64_t column = positions[i] - begin, group = column_group[column];
        const int64_t cell = row_group[row] * column_groups + group;
        places[i] = start[cell] + row_rank[row] * column_size[group] + column_rank[column];
    }
}

/* The positions of increasing places. ``order`` has the ``cells`` cells as they follow each other; of each cell there
 * are given where it begins, how wide it is, where its rows and columns begin in the lists of all, and the start and
 * the width of its tensor. */
void efl_positions(const int64_t *places, int64_t count, const int64_t *order, int64_t cells, const int64_t *start,
                   const int32_t *width, const int32_t *first_row, const int32_t *first_column, const int64_t *rows,
                   const int64_t *columns, const int32_t *tensor, const int32_t *stride, int64_t *restrict positions) {
    int64_t next = 1, cell = cells ? order[0] : 0, row = 0, begin = cells ? start[cell] : 0;
    for (int64_t i = 0; i < count; i++) {
        while (next < cells && start[order[next]] <= places[i]) {
            cell = order[next++];
            row = 0;
            begin = start[cell];
        }
        if (places[i] >= begin + width[cell]) {
            row = (places[i] - start[cell]) / width[cell];
            begin = start[cell] + row * width[cell];
        }
        const int64_t column = columns[first_column[cell] + places[i] - begin];
        positions[i] = tensor[cell] + rows[first_row[cell] + row] * stride[cell] + column;
    }
}
