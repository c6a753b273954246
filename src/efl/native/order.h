/* Coordinates in the order of a field. */
#ifndef EFL_ORDER
#define EFL_ORDER

#include <stdint.h>

/* A tensor: where it begins and ends, how wide it is; where its rows and columns begin in the tables of all, where its
 * cells do, and how many of them are side by side. */
typedef struct {
    int64_t begin, end, columns, first_row, first_column, first_cell, groups;
} Tensor;

/* An order of n coordinates. Of every row its group and its rank within, of every column as well; of every cell where
 * it begins, how wide it is, and which tensor it is of; the cells as they follow each other; rows and columns group by
 * group, and where those of a cell begin among them. */
typedef struct {
    int64_t n, tensors, cells;
    const Tensor *tensor;
    const int32_t *row_group, *row_rank, *column_group, *column_rank;
    const int32_t *begin, *width, *of, *order;
    const int32_t *rows, *columns, *first_row, *first_column;
} Order;

/* Increasing places as positions in order, and where each was; 0, if there is no memory, or they are none. */
int32_t efl_located(const Order *order, const int64_t *places, int64_t count, int64_t *sorted, int64_t *which);

#endif
