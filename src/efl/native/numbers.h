/* Places and magnitudes as a range coder's words. */
#ifndef EFL_NUMBERS
#define EFL_NUMBERS

#include <stdint.h>

#define LONGEST 1024 /* gaps in a table, as in wire/range_coder.py; so are the two that follow */
#define PLAIN 16
#define SYMBOLS 43

/* How many words so many numbers take at most: a gap or a magnitude takes 24 bits, and gaps beyond a table are few. */
static inline int64_t words_at_most(int64_t count, int64_t last, int64_t classes) {
    return 3 * count + last / LONGEST + classes + 8;
}

/* Write ``count`` places, increasing, in classes between bounds, and as many magnitudes.
 *
 * ``taken`` (classes) becomes how many places are in each class, ``occur`` (SYMBOLS) how often each symbol occurs.
 * Returns how many words there are. */
int64_t efl_encode_numbers(const int64_t *places, const int32_t *magnitudes, int64_t count, const int64_t *bounds,
                           int64_t classes, int64_t *restrict taken, int64_t *restrict occur, uint32_t *words);

/* Read what efl_encode_numbers wrote, magnitudes as symbols; 0, if it did not write this. */
int32_t efl_decode_numbers(const uint32_t *words, int64_t length, const int64_t *bounds, int64_t classes,
                           const int64_t *taken, const int64_t *occur, int64_t symbols, int64_t *places,
                           int32_t *found);

#endif
