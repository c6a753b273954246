/* Samples as they are kept: floats, or bytes; value · scale + shift, channel by channel, is what a network takes. */
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const void *samples;
    int64_t count, channels, size; /* of samples, of channels in each, of values in a channel */
    const float *scale, *shift;
    int32_t bytes;
} Source;

/* Whether all of these samples exist. */
int32_t efl_exist(const Source *source, const int64_t *chosen, int64_t count);

/* Have them brought from memory, while something else is done. */
void efl_call_for(const Source *source, const int64_t *chosen, int64_t count);

/* The samples chosen, one after the other, as floats. */
void efl_fetch(const Source *source, const int64_t *chosen, int64_t count, float *restrict out);
