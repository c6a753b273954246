/* Coordinates that are not zero: made, found, added and sorted, as wire/sparse.py does it in NumPy. */
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#include <stdint.h>
#include <stdlib.h>

#define WORD 64   /* bits */
#define LANES 8   /* partial sums of squares, as in wire/sparse.py */
#define BLOCK 512 /* codes that are made at once, an even number */

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

/* NumPy's default generator, PCG64 (O'Neill 2014): two numbers of 32 bits from each of 64, the low bits first. */
typedef struct {
    unsigned __int128 state, step;
} Generator;

static inline uint64_t next(Generator *generator) {
    const unsigned __int128 factor = (unsigned __int128)0x2360ED051FC65DA4 << 64 | 0x4385DF649FCCF645;
    generator->state = generator->state * factor + generator->step;
    const uint64_t bits = (uint64_t)(generator->state >> 64) ^ (uint64_t)generator->state;
    const int turn = (int)(generator->state >> 122);
    return bits >> turn | bits << (-turn & 63);
}

/* A block of numbers from [0, 1). */
static Generator draw(Generator from, float *restrict numbers) {
    uint32_t bits[BLOCK];
    for (int64_t i = 0; i < BLOCK; i += 2) {
        const uint64_t both = next(&from);
        bits[i] = (uint32_t)both;
        bits[i + 1] = (uint32_t)(both >> 32);
    }
    for (int64_t i = 0; i < BLOCK; i++) numbers[i] = (float)(bits[i] >> 8) * (1.0f / 16777216.0f);
    return from;
}

/* Numbers over ``step``, plus noise, rounded down. */
static void round_down(const float *numbers, const float *noise, int64_t some, float step, int32_t *restrict codes) {
    for (int64_t i = 0; i < some; i++) {
        const float number = numbers[i] / step + noise[i];
        const int32_t code = (int32_t)number; /* rounded towards zero */
        codes[i] = code - ((float)code > number);
    }
}

/* Append to ``found`` the codes that are not zero, and where they are; how many there are then. Both have room for as
 * many as there are up to here. */
static int64_t append(const int32_t *codes, int64_t first, int64_t some, int64_t count, int64_t *restrict positions,
                      int32_t *restrict found) {
    int64_t i = 0;
#ifdef __AVX512F__ /* sixteen at a time; what is stored beyond those that count is written over later */
    __m512i low = _mm512_add_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi64(first));
    for (; i + 16 <= some; i += 16) {
        const __m512i block = _mm512_loadu_si512(codes + i), high = _mm512_add_epi64(low, _mm512_set1_epi64(8));
        const __mmask16 some_are = _mm512_test_epi32_mask(block, block);
        _mm512_storeu_si512(found + count, _mm512_maskz_compress_epi32(some_are, block));
        _mm512_storeu_si512(positions + count, _mm512_maskz_compress_epi64((__mmask8)some_are, low));
        count += __builtin_popcount(some_are & 255);
        _mm512_storeu_si512(positions + count, _mm512_maskz_compress_epi64((__mmask8)(some_are >> 8), high));
        count += __builtin_popcount(some_are >> 8);
        low = _mm512_add_epi64(high, _mm512_set1_epi64(8));
    }
#endif
    for (; i < some; i++) {
        positions[count] = first + i;
        found[count] = codes[i];
        count += codes[i] != 0;
    }
    return count;
}

/* Numbers over ``step``, plus noise, rounded down: those that are not zero, and where; both have room for ``n``. */
int64_t efl_round_down(const float *numbers, const float *noise, int64_t n, float step, int64_t *restrict positions,
                       int32_t *restrict codes) {
    int32_t block[BLOCK];
    int64_t count = 0;
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t some = n - first < BLOCK ? n - first : BLOCK;
        round_down(numbers + first, noise + first, some, step, block);
        count = append(block, first, some, count, positions, codes);
    }
    return count;
}

/* The same with the noise that NumPy's generator draws, from its state and its step, high words first. */
int64_t efl_round_down_drawn(const float *numbers, const uint64_t *generator, int64_t n, float step,
                             int64_t *restrict positions, int32_t *restrict codes) {
    Generator from = {(unsigned __int128)generator[0] << 64 | generator[1],
                      (unsigned __int128)generator[2] << 64 | generator[3]};
    float noise[BLOCK];
    int32_t block[BLOCK];
    int64_t count = 0;
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t some = n - first < BLOCK ? n - first : BLOCK;
        from = draw(from, noise);
        round_down(numbers + first, noise, some, step, block);
        count = append(block, first, some, count, positions, codes);
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

/* Add ``factor`` times some codes at their positions among ``n``, as whole numbers of 32 bits; 1, if one lies outside. */
int32_t efl_add_codes(uint32_t *restrict total, int64_t n, const int64_t *positions, const uint32_t *codes,
                      int64_t count, uint32_t factor) {
    for (int64_t i = 0; i < count; i++) {
        if ((uint64_t)positions[i] >= (uint64_t)n) return 1;
        total[positions[i]] += codes[i] * factor;
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
    return append(codes, 0, n, 0, positions, found);
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
