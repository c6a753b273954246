/* Codes at their places as bytes, and back, in one call each: what wire/code_bytes.py does in Python, byte for byte. */
#include <stdlib.h>

#include "numbers.h"
#include "order.h"

#define LONGEST_VARINT 9 /* bytes */
#define MOST_VARINT 10   /* bytes of any number of 64 bits */

typedef struct {
    const uint8_t *at, *end;
} Bytes;

static uint8_t *put_varint(uint8_t *out, uint64_t number) {
    for (; number > 127; number >>= 7) *out++ = (uint8_t)(number | 128);
    *out++ = (uint8_t)number;
    return out;
}

/* A whole number; −1, if there is none. */
static int64_t get_varint(Bytes *bytes) {
    uint64_t number = 0;
    for (int shift = 0; shift < 7 * LONGEST_VARINT; shift += 7) {
        if (bytes->at == bytes->end) return -1;
        const uint8_t byte = *bytes->at++;
        number |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return (int64_t)number;
    }
    return -1;
}

/* Bits of a magnitude that follow the symbol for its octave. */
static int low_bits_of(int64_t symbol) { return (int)(symbol - PLAIN + 4); }

/* The low bits of magnitudes that are that large, octave by octave, each filling whole bytes. */
static uint8_t *put_low_bits(const int32_t *magnitudes, int64_t count, int64_t symbols, uint8_t *out) {
    for (int64_t symbol = PLAIN; symbol < symbols; symbol++) {
        const int width = low_bits_of(symbol);
        uint64_t held = 0;
        int bits = 0;
        for (int64_t i = 0; i < count; i++) {
            if (magnitudes[i] >> width != 1) continue;
            held = held << width | ((uint64_t)magnitudes[i] & ((1u << width) - 1));
            for (bits += width; bits >= 8; bits -= 8) *out++ = (uint8_t)(held >> (bits - 8));
        }
        if (bits) *out++ = (uint8_t)(held << (8 - bits));
    }
    return out;
}

/* Complete magnitudes of which only the octave is known; 0, if there are too few bytes. */
static int get_low_bits(Bytes *bytes, int64_t symbols, int64_t count, int32_t *magnitudes) {
    for (int64_t symbol = symbols - 1; symbol >= PLAIN; symbol--) /* so that no number is taken for a symbol later */
        for (int64_t i = 0; i < count; i++)
            if (magnitudes[i] == symbol) magnitudes[i] = (int32_t)-symbol;
    for (int64_t symbol = PLAIN; symbol < symbols; symbol++) {
        const int width = low_bits_of(symbol);
        uint64_t held = 0;
        int bits = 0;
        for (int64_t i = 0; i < count; i++) {
            if (magnitudes[i] != -symbol) continue;
            for (; bits < width; bits += 8) {
                if (bytes->at == bytes->end) return 0;
                held = held << 8 | *bytes->at++;
            }
            bits -= width;
            magnitudes[i] = (int32_t)((held >> bits & ((1u << width) - 1)) | 1u << width);
        }
    }
    return 1;
}

static uint8_t *put_signs(const int32_t *codes, int64_t count, uint8_t *out) {
    for (int64_t i = 0; i < count; i += 8) {
        const int64_t some = count - i < 8 ? count - i : 8;
        unsigned byte = 0;
        for (int64_t bit = 0; bit < some; bit++) byte |= (unsigned)(codes[i + bit] > 0) << (7 - bit);
        *out++ = (uint8_t)byte;
    }
    return out;
}

/* How many bytes efl_write_codes has a use for. */
int64_t efl_room_for_codes(int64_t count, int64_t last, int64_t classes) {
    return MOST_VARINT * (classes + SYMBOLS + 2) + 4 * words_at_most(count, last, classes) + 5 * count + SYMBOLS + 8;
}

/* Write codes, none of them 0: the number of places in each class, how often each symbol of a magnitude occurs, the
 * coder's words, low bits, signs.
 *
 * ``places`` increase, in classes between bounds; the code at the i-th is ``codes[which[i]]``, or the i-th where there
 * is no ``which``. Signs are written in the order of codes. Returns how many bytes there are; −1, if memory is short. */
int64_t efl_write_codes(const int64_t *places, const int32_t *codes, const int64_t *which, int64_t count,
                        const int64_t *bounds, int64_t classes, uint8_t *restrict out) {
    const int64_t most_words = words_at_most(count, bounds[classes], classes);
    int32_t *magnitudes = malloc((size_t)count * sizeof *magnitudes + 1);
    int64_t *taken = malloc((size_t)classes * sizeof *taken + 1);
    uint32_t *words = malloc((size_t)most_words * sizeof *words);
    int64_t occur[SYMBOLS], symbols = 0, written = -1;
    if (magnitudes && taken && words) {
        for (int64_t i = 0; i < count; i++) {
            const int32_t code = codes[which ? which[i] : i];
            magnitudes[i] = (code < 0 ? -code : code) - 1;
        }
        const int64_t length = efl_encode_numbers(places, magnitudes, count, bounds, classes, taken, occur, words);
        uint8_t *at = out;
        for (int64_t class = 0; class < classes; class++) at = put_varint(at, (uint64_t)taken[class]);
        for (int64_t i = 0; i < SYMBOLS; i++)
            if (occur[i]) symbols = i + 1;
        at = put_varint(at, (uint64_t)symbols);
        for (int64_t i = 0; i < symbols; i++) at = put_varint(at, (uint64_t)occur[i]);
        at = put_varint(at, (uint64_t)length);
        for (int64_t i = 0; i < length; i++, at += 4)
            for (int byte = 0; byte < 4; byte++) at[byte] = (uint8_t)(words[i] >> 8 * byte);
        at = put_low_bits(magnitudes, count, symbols, at);
        written = put_signs(codes, count, at) - out;
    }
    free(words);
    free(taken);
    free(magnitudes);
    return written;
}

/* What there is before the words, and the words themselves. */
typedef struct {
    int64_t *taken, occur[SYMBOLS], count, symbols, length;
    uint32_t *words;
} Parsed;

/* Parse it; 0, if it cannot be right: then before anything is made that is longer than a few times the bytes, for
 * every code has a sign. */
static int parse(Bytes *bytes, const int64_t *bounds, int64_t classes, Parsed *parsed) {
    for (int64_t class = 0; class < classes; class++) {
        parsed->taken[class] = get_varint(bytes);
        if (parsed->taken[class] < 0 || parsed->taken[class] > bounds[class + 1] - bounds[class]) return 0;
        parsed->count += parsed->taken[class];
    }
    parsed->symbols = get_varint(bytes);
    if (parsed->symbols < 0 || parsed->symbols > SYMBOLS) return 0;
    int64_t left = parsed->count;
    for (int64_t i = 0; i < parsed->symbols; i++) {
        parsed->occur[i] = get_varint(bytes);
        if (parsed->occur[i] < 0 || parsed->occur[i] > left) return 0;
        left -= parsed->occur[i];
    }
    parsed->length = get_varint(bytes);
    if (left || parsed->length < 0 || parsed->length > (bytes->end - bytes->at) / 4) return 0;
    if (parsed->count > 8 * (bytes->end - bytes->at - 4 * parsed->length)) return 0;
    parsed->words = malloc((size_t)parsed->length * sizeof *parsed->words + 1);
    if (!parsed->words) return 0;
    for (int64_t i = 0; i < parsed->length; i++, bytes->at += 4)
        parsed->words[i] = bytes->at[0] | (uint32_t)bytes->at[1] << 8 | (uint32_t)bytes->at[2] << 16 |
                           (uint32_t)bytes->at[3] << 24;
    return 1;
}

/* Turn magnitudes into codes with the signs that follow; 0, if there are too few bytes. */
static int get_signs(Bytes *bytes, int64_t count, int32_t *codes) {
    if ((count + 7) / 8 > bytes->end - bytes->at) return 0;
    for (int64_t i = 0; i < count; i++) {
        const int32_t positive = bytes->at[i / 8] >> (7 - i % 8) & 1;
        codes[i] = positive ? codes[i] + 1 : -codes[i] - 1;
    }
    bytes->at += (count + 7) / 8;
    return 1;
}

/* Put what is at places where it belongs by an order; 0, if there is no memory. */
static int relocate(const Order *order, int64_t count, int64_t *positions, int32_t *magnitudes) {
    int64_t *sorted = malloc((size_t)count * sizeof *sorted + 1), *which = malloc((size_t)count * sizeof *which + 1);
    int32_t *moved = malloc((size_t)count * sizeof *moved + 1);
    const int done = sorted && which && moved && efl_located(order, positions, count, sorted, which);
    for (int64_t i = 0; done && i < count; i++) moved[i] = magnitudes[which[i]];
    for (int64_t i = 0; done && i < count; i++) positions[i] = sorted[i], magnitudes[i] = moved[i];
    free(moved);
    free(which);
    free(sorted);
    return done;
}

static int below(const int32_t *magnitudes, int64_t count, int32_t most) {
    int32_t found = 0;
    for (int64_t i = 0; i < count; i++) found |= magnitudes[i] >= most;
    return !found;
}

/* Read what efl_write_codes wrote: the positions of increasing places by ``order``, or the places themselves, and
 * codes smaller than ``most`` in magnitude there; both have room for as many as there are bits, or places. ``used``
 * becomes how many of the bytes that is. Returns how many codes there are; -1, if it did not write this, or memory is
 * short. */
int64_t efl_read_codes(const Order *order, const uint8_t *data, int64_t length, const int64_t *bounds, int64_t classes,
                       int32_t most, int64_t *positions, int32_t *codes, int64_t *used) {
    Bytes bytes = {data, data + length};
    Parsed parsed = {.taken = malloc((size_t)classes * sizeof *parsed.taken + 1)};
    const int done =
        parsed.taken && parse(&bytes, bounds, classes, &parsed) &&
        efl_decode_numbers(parsed.words, parsed.length, bounds, classes, parsed.taken, parsed.occur, parsed.symbols,
                           positions, codes) &&
        get_low_bits(&bytes, parsed.symbols, parsed.count, codes) && below(codes, parsed.count, most) &&
        (!order || relocate(order, parsed.count, positions, codes)) && get_signs(&bytes, parsed.count, codes);
    *used = bytes.at - data;
    free(parsed.words);
    free(parsed.taken);
    return done ? parsed.count : -1;
}
