/* Places and magnitudes as a range coder writes them: what wire/range_coder.py does by `constriction`, bit for bit.
 *
 * The coder is constriction's (words of 32 bits, a state of 64), and so is the way in which probabilities become whole
 * numbers. This is compiled so that a product and a sum stay two operations.
 */
#include "numbers.h"

#define PRECISION 24          /* bits of a probability */
#define TAIL 12               /* as in wire/range_coder.py */
#define BUCKETS 256           /* of a table, in which a quantile is looked up */
#define NEAR 6                /* gaps that are looked for first where half of all are smaller */
#define LAST (1ULL << 32)     /* what a range must not fall below */

typedef struct {
    uint32_t left[LONGEST + 2]; /* what lies below each symbol; the last is 1 */
    int64_t count;              /* of symbols */
} Table;

typedef struct {
    uint64_t lower, range;
    int64_t held;   /* words that a carry may still change: the first, and others of ones only */
    uint32_t first;
    uint32_t *out;
} Writer;

typedef struct {
    uint64_t range, above; /* how far the stream's point lies above the lower end of the range */
    const uint32_t *in, *end;
} Reader;

/* A table of probabilities: ``below`` has for each symbol the sum of all weights before it, and that of all. */
static void quantised(const double *below, int64_t count, Table *table) {
    const double scale = (double)((1 << PRECISION) - count) / below[count];
    for (int64_t i = 0; i < count; i++) table->left[i] = (uint32_t)(int32_t)(below[i] * scale) + (uint32_t)i;
    table->left[count] = 1u << PRECISION;
    table->count = count;
}

/* The table of gaps where ``taken`` of ``size`` places are; the first gap that is not in it. */
static int64_t gap_table(int64_t size, int64_t taken, Table *table) {
    double below[LONGEST + 2];
    const double share = ((double)taken + 0.5) / (double)(size + 1), tail = TAIL / share, others = 1 - share;
    const int64_t length = tail < LONGEST - 2 ? (int64_t)tail + 2 : LONGEST;
    double weight = share;
    below[0] = 0;
    for (int64_t i = 0; i < length; i++) {
        below[i + 1] = below[i] + weight;
        weight *= others;
    }
    below[length + 1] = below[length] + weight / share;
    quantised(below, length + 1, table);
    return length;
}

/* The table of ``count`` symbols that occur so often; 0, if none does. */
static int symbol_table(const int64_t *occur, int64_t count, Table *table) {
    double below[SYMBOLS + 1] = {0};
    for (int64_t i = 0; i < count; i++) below[i + 1] = below[i] + (double)occur[i];
    if (!(below[count] > 0)) return 0;
    quantised(below, count, table);
    return 1;
}

/* Write the words that were held, now that it is known whether there is a carry; where the next one goes. */
static __attribute__((noinline)) uint32_t *release(uint32_t *out, int64_t held, uint32_t first, int carry) {
    for (int64_t i = 0; i < held; i++) *out++ = i ? (carry ? 0 : UINT32_MAX) : first + (uint32_t)carry;
    return out;
}

static inline void put(Writer *writer, const Table *table, int64_t symbol) {
    const uint64_t scale = writer->range >> PRECISION, left = table->left[symbol];
    const uint64_t lower = writer->lower + scale * left;
    writer->range = scale * (table->left[symbol + 1] - left);
    if (writer->held && lower + writer->range > lower) {
        writer->out = release(writer->out, writer->held, writer->first, lower < writer->lower);
        writer->held = 0;
    }
    writer->lower = lower;
    if (writer->range >= LAST) return;
    const uint32_t word = (uint32_t)(lower >> 32);
    writer->lower <<= 32;
    writer->range <<= 32;
    if (writer->held) {
        writer->held++;
    } else if (writer->lower + writer->range > writer->lower) {
        *writer->out++ = word;
    } else {
        writer->held = 1;
        writer->first = word;
    }
}

/* Write what is left; where the stream ends. */
static uint32_t *finish(Writer writer) {
    if (writer.range == UINT64_MAX) return writer.out; /* nothing was written */
    const uint64_t point = writer.lower + (LAST - 1);
    uint32_t *out = release(writer.out, writer.held, writer.first, point < writer.lower);
    *out++ = (uint32_t)(point >> 32);
    if ((uint32_t)((writer.lower + writer.range) >> 32) == (uint32_t)(point >> 32)) *out++ = 0;
    return out;
}

static inline int32_t symbol_of(int32_t magnitude) {
    magnitude &= INT32_MAX; /* so that it is always a symbol */
    return magnitude < PLAIN ? magnitude : 32 - __builtin_clz((uint32_t)magnitude) - 5 + PLAIN;
}

/* The writer is handed over by value, here and below, so that it stays in registers. */
static Writer put_gaps(Writer writer, const int64_t *places, int64_t taken, int64_t first, int64_t size) {
    Table table;
    const int64_t most = gap_table(size, taken, &table);
    for (int64_t i = 0, next = first; i < taken; i++) {
        int64_t gap = places[i] - next;
        next = places[i] + 1;
        for (; gap >= most; gap -= most) put(&writer, &table, most);
        put(&writer, &table, gap);
    }
    return writer;
}

static Writer put_symbols(Writer writer, const Table *table, const int32_t *magnitudes, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const uint64_t width = (writer.range >> PRECISION) * table->left[1];
        if (magnitudes[i] || writer.held || width < LAST)
            put(&writer, table, symbol_of(magnitudes[i]));
        else
            writer.range = width; /* what `put` comes to for most of them */
    }
    return writer;
}

int64_t efl_encode_numbers(const int64_t *places, const int32_t *magnitudes, int64_t count, const int64_t *bounds,
                           int64_t classes, int64_t *restrict taken, int64_t *restrict occur, uint32_t *words) {
    Writer writer = {.range = UINT64_MAX, .out = words};
    int64_t at = 0, symbols = 0;
    for (int64_t class = 0; class < classes; class++) {
        const int64_t start = at, size = bounds[class + 1] - bounds[class];
        while (at < count && places[at] < bounds[class + 1]) at++;
        taken[class] = at - start;
        if (0 < at - start && at - start < size)
            writer = put_gaps(writer, places + start, at - start, bounds[class], size);
    }
    for (int64_t i = 0; i < SYMBOLS; i++) occur[i] = 0;
    for (int64_t i = 0; i < count; i++)
        if (magnitudes[i]) occur[symbol_of(magnitudes[i])]++; /* few are: nobody waits for the sum of the others */
    occur[0] = count;
    for (int64_t i = 1; i < SYMBOLS; i++) occur[0] -= occur[i];
    for (int64_t i = 0; i < SYMBOLS; i++)
        if (occur[i]) symbols = i + 1;
    Table table;
    if (symbols > 1 && symbol_table(occur, symbols, &table)) writer = put_symbols(writer, &table, magnitudes, count);
    return finish(writer) - words;
}

static void index_of(const Table *table, uint16_t *first) {
    int64_t symbol = 0;
    for (int64_t bucket = 0; bucket < BUCKETS; bucket++) {
        while (table->left[symbol + 1] <= (uint32_t)bucket << (PRECISION - 8)) symbol++;
        first[bucket] = (uint16_t)symbol;
    }
}

/* The symbol at the stream's point; −1, if no encoder writes this. A division takes longer than all else together. */
static inline int64_t looked_up(const Reader *reader, uint64_t scale, const Table *table, const uint16_t *first) {
    const uint64_t quantile = reader->above / scale;
    if (quantile >> PRECISION) return -1;
    int64_t symbol = first[quantile >> (PRECISION - 8)];
    while (table->left[symbol + 1] <= quantile) symbol++;
    return symbol;
}

/* The next symbol; −1, if no encoder writes this. Of the first ``likely`` it is found without a division. */
static inline int64_t get(Reader *reader, const Table *table, const uint16_t *first, int64_t likely) {
    const uint64_t scale = reader->range >> PRECISION;
    int64_t symbol = 0;
    for (int64_t i = 1; i <= likely; i++) symbol += reader->above >= scale * table->left[i];
    if (symbol == likely && (symbol = looked_up(reader, scale, table, first)) < 0) return -1;
    reader->above -= scale * table->left[symbol];
    reader->range = scale * (table->left[symbol + 1] - table->left[symbol]);
    if (reader->range < LAST) {
        reader->range <<= 32;
        reader->above = reader->above << 32 | (reader->in < reader->end ? *reader->in++ : 0);
    }
    return symbol;
}

/* The same, where nearly all symbols are the first: a branch that is foreseen takes no time. */
static inline int64_t get_rare(Reader *reader, const Table *table, const uint16_t *first) {
    const uint64_t scale = reader->range >> PRECISION, width = scale * table->left[1];
    if (reader->above >= width || width < LAST) return get(reader, table, first, 0);
    reader->range = width;
    return 0;
}

static int get_gaps(Reader *from, int64_t taken, int64_t first, int64_t size, int64_t *restrict places) {
    Reader reader = *from; /* in registers */
    Table table;
    uint16_t index[BUCKETS];
    const int64_t most = gap_table(size, taken, &table);
    index_of(&table, index);
    const int dense = most >= NEAR && table.left[NEAR] >> (PRECISION - 1);
    for (int64_t i = 0, place = 0; i < taken; i++, place++) {
        for (int64_t gap = most; gap == most;) {
            gap = dense ? get(&reader, &table, index, NEAR) : get(&reader, &table, index, 0);
            place += gap;
            if (gap < 0 || place >= size) return 0;
        }
        places[i] = first + place;
    }
    *from = reader;
    return 1;
}

static int get_symbols(Reader reader, const Table *table, int64_t count, int32_t *restrict found) {
    uint16_t index[BUCKETS];
    index_of(table, index);
    if (table->left[1] >> (PRECISION - 1)) {
        for (int64_t i = 0; i < count; i++)
            if ((found[i] = (int32_t)get_rare(&reader, table, index)) < 0) return 0;
        return 1;
    }
    for (int64_t i = 0; i < count; i++)
        if ((found[i] = (int32_t)get(&reader, table, index, 0)) < 0) return 0;
    return 1;
}

int32_t efl_decode_numbers(const uint32_t *words, int64_t length, const int64_t *bounds, int64_t classes,
                           const int64_t *taken, const int64_t *occur, int64_t symbols, int64_t *places,
                           int32_t *found) {
    Reader reader = {.range = UINT64_MAX, .in = words, .end = words + length};
    int64_t count = 0;
    for (int64_t i = 0; i < 2; i++) reader.above = reader.above << 32 | (reader.in < reader.end ? *reader.in++ : 0);
    for (int64_t class = 0; class < classes; count += taken[class++]) {
        const int64_t first = bounds[class], size = bounds[class + 1] - first;
        if (taken[class] == size)
            for (int64_t i = 0; i < size; i++) places[count + i] = first + i;
        else if (taken[class] && !get_gaps(&reader, taken[class], first, size, places + count))
            return 0;
    }
    if (symbols < 2) {
        for (int64_t i = 0; i < count; i++) found[i] = 0;
        return 1;
    }
    Table table;
    return symbol_table(occur, symbols, &table) && get_symbols(reader, &table, count, found);
}
