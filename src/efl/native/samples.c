#include "samples.h"

#define AHEAD 4 /* samples */
#define LINE 64 /* bytes that memory delivers at once */

/* GCC would take half of the longest vectors, as the other files are compiled; Clang knows no such attribute. */
#if defined(__AVX512F__) && !defined(__clang__)
#define WHOLE_VECTORS __attribute__((target("prefer-vector-width=512")))
#else
#define WHOLE_VECTORS
#endif

int32_t efl_exist(const Source *source, const int64_t *chosen, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (chosen[i] < 0 || chosen[i] >= source->count) return 0;
    return 1;
}

WHOLE_VECTORS static void spread(const Source *source, int64_t sample, float *restrict out) {
    const ptrdiff_t size = source->size;
    for (int64_t channel = 0; channel < source->channels; channel++, out += size) {
        const ptrdiff_t first = (sample * source->channels + channel) * size;
        const float scale = source->scale[channel], shift = source->shift[channel];
        if (source->bytes) {
            const uint8_t *restrict from = (const uint8_t *)source->samples + first;
            for (ptrdiff_t i = 0; i < size; i++) out[i] = (float)from[i] * scale;
        } else {
            const float *restrict from = (const float *)source->samples + first;
            for (ptrdiff_t i = 0; i < size; i++) out[i] = from[i] * scale;
        }
        if (shift != 0)
            for (ptrdiff_t i = 0; i < size; i++) out[i] += shift;
    }
}

void efl_call_for(const Source *source, const int64_t *chosen, int64_t count) {
    const int64_t length = source->channels * source->size * (source->bytes ? 1 : 4);
    for (int64_t i = 0; i < count; i++)
        for (int64_t byte = 0; byte < length; byte += LINE)
            __builtin_prefetch((const char *)source->samples + chosen[i] * length + byte);
}

/* They lie anywhere in memory, so those that come next are called for while one is at work. */
WHOLE_VECTORS void efl_fetch(const Source *source, const int64_t *chosen, int64_t count, float *restrict out) {
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count) efl_call_for(source, chosen + i + AHEAD, 1);
        spread(source, chosen[i], out + i * source->channels * source->size);
    }
}
