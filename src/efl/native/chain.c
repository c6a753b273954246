/* Training of a chain of linear layers, one model after the other.
 *
 * What training/backends/chain.py does in a dozen operations a layer is done here in one go: a mini-batch and its activations
 * stay in the cache, and the gradient is only ever held in registers. Matrix products are cut into tiles of ROWS by some
 * vectors, whose sums fit into the registers. A model's numbers do not depend on which others it shares a call with.
 */
#include <math.h>
#include <string.h>

#include "samples.h"

#define ROWS 5 /* divides the usual batches and layers: 10, 20, 50, 100, 200 */
#if defined(__AVX512F__)
#define LANES 16
#define COLUMNS 4 /* vectors: 5 × 4 sums, 4 factors and a scalar, of 32 registers */
#define PARTNERS 5 /* 5 × 5 sums, 5 factors and another */
#elif defined(__AVX__)
#define LANES 8
#define COLUMNS 2 /* of 16 registers */
#define PARTNERS 2
#else
#define LANES 4
#define COLUMNS 2
#define PARTNERS 2
#endif
#define MOST_LAYERS 64
#define UNROLL _Pragma("GCC unroll 8")

typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Mask __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#if !defined(__clang__) && __GNUC__ < 12
#define __builtin_shufflevector(a, b, ...) __builtin_shuffle(a, (Mask){__VA_ARGS__})
#endif

static inline Vector load(const float *from) { return *(const Vector *)from; }

static inline ptrdiff_t at_most(ptrdiff_t number, ptrdiff_t most) { return number < most ? number : most; }

/* What becomes of a product: factor · product is added onto what is there, or replaces it;
 * its squares, without the factor, are added to others, if there are some. */
typedef struct {
    float *to, *squares;
    float factor;
    int onto;
} Target;

static inline Target within(Target target, ptrdiff_t offset) {
    target.to += offset;
    if (target.squares) target.squares += offset;
    return target;
}

static inline __attribute__((always_inline)) void put(Vector product, Target target) {
    *(Vector *)target.to = target.onto ? load(target.to) + target.factor * product : target.factor * product;
    if (target.squares) *(Vector *)target.squares += product * product;
}

static void put_each(const float *products, ptrdiff_t count, Target target) {
    for (ptrdiff_t j = 0; j < count; j++) {
        target.to[j] = (target.onto ? target.to[j] : 0) + target.factor * products[j];
        if (target.squares) target.squares[j] += products[j] * products[j];
    }
}

/* Up to ROWS rows of a product at once, some vectors wide: Σ_i left[r · stride + i · step] · right[i · width …]. */
static inline __attribute__((always_inline)) void tile(
    const int vectors, ptrdiff_t rows, ptrdiff_t inner, const float *left, ptrdiff_t stride, ptrdiff_t step,
    const float *right, ptrdiff_t width, Target target, ptrdiff_t line
) {
    const float *from[ROWS];
    Vector sum[ROWS][COLUMNS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        from[r] = left + at_most(r, rows - 1) * stride;
        UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = (Vector){0};
    }
    for (ptrdiff_t i = 0; i < inner; i++) {
        Vector factor[COLUMNS];
        UNROLL for (int v = 0; v < vectors; v++) factor[v] = load(right + i * width + v * LANES);
        UNROLL for (int r = 0; r < ROWS; r++) {
            const float scalar = from[r][i * step];
            UNROLL for (int v = 0; v < vectors; v++) sum[r][v] += scalar * factor[v];
        }
    }
    UNROLL for (int r = 0; r < ROWS; r++) if (r < rows)
        UNROLL for (int v = 0; v < vectors; v++) put(sum[r][v], within(target, r * line + v * LANES));
}

/* left (rows, inner) times right (inner, width); left[r, i] lies at r · stride + i · step. */
static void product(
    ptrdiff_t rows, ptrdiff_t width, ptrdiff_t inner, const float *left, ptrdiff_t stride, ptrdiff_t step,
    const float *right, Target target, float *spare
) {
    ptrdiff_t column = 0;
    for (ptrdiff_t vectors; (vectors = at_most((width - column) / LANES, COLUMNS)) > 0; column += vectors * LANES)
        for (ptrdiff_t row = 0; row < rows; row += ROWS) {
            const Target here = within(target, row * width + column);
            const float *some = left + row * stride, *across = right + column;
            const ptrdiff_t few = at_most(ROWS, rows - row);
            switch (vectors) {
#if COLUMNS > 2
                case 4: tile(4, few, inner, some, stride, step, across, width, here, width); break;
                case 3: tile(3, few, inner, some, stride, step, across, width, here, width); break;
#endif
                case 2: tile(2, few, inner, some, stride, step, across, width, here, width); break;
                default: tile(1, few, inner, some, stride, step, across, width, here, width);
            }
        }
    const ptrdiff_t rest = width - column;
    if (rest == 0) return;
    float sums[ROWS * LANES]; /* the last few columns, filled up with zeros */
    memset(spare, 0, inner * LANES * sizeof(float));
    for (ptrdiff_t i = 0; i < inner; i++) memcpy(spare + i * LANES, right + i * width + column, rest * sizeof(float));
    for (ptrdiff_t row = 0; row < rows; row += ROWS) {
        const ptrdiff_t few = at_most(ROWS, rows - row);
        tile(1, few, inner, left + row * stride, stride, step, spare, LANES, (Target){sums, NULL, 1, 0}, LANES);
        for (ptrdiff_t r = 0; r < few; r++) put_each(sums + r * LANES, rest, within(target, (row + r) * width + column));
    }
}

/* The sum of a vector's lanes: upper and lower half are added until one is left. */
static inline float total(Vector vector) {
#if LANES == 16
    vector += __builtin_shufflevector(vector, vector, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    vector += __builtin_shufflevector(vector, vector, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    vector += __builtin_shufflevector(vector, vector, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
#elif LANES == 8
    vector += __builtin_shufflevector(vector, vector, 4, 5, 6, 7, 0, 1, 2, 3);
    vector += __builtin_shufflevector(vector, vector, 2, 3, 0, 1, 6, 7, 4, 5);
#else
    vector += __builtin_shufflevector(vector, vector, 2, 3, 0, 1);
#endif
    return vector[0] + vector[1];
}

/* out (rows, width) = left (rows, inner) times the transpose of right (width, inner), plus bias (width). */
static void transposed_product(
    ptrdiff_t rows, ptrdiff_t width, ptrdiff_t inner, const float *left, const float *right, const float *bias,
    float *out
) {
    const ptrdiff_t even = inner < LANES ? 0 : inner / LANES * LANES, rest = inner - even;
    Mask uncounted; /* of the last vector, which reaches back into the one before */
    for (int lane = 0; lane < LANES; lane++) uncounted[lane] = lane >= LANES - rest ? -1 : 0;
    for (ptrdiff_t column = 0; column < width; column += PARTNERS) {
        for (ptrdiff_t row = 0; row < rows; row += ROWS) {
            const float *a[ROWS], *b[PARTNERS];
            Vector sum[ROWS][PARTNERS];
            UNROLL for (int r = 0; r < ROWS; r++) {
                a[r] = left + at_most(row + r, rows - 1) * inner;
                UNROLL for (int p = 0; p < PARTNERS; p++) sum[r][p] = (Vector){0};
            }
            UNROLL for (int p = 0; p < PARTNERS; p++) b[p] = right + at_most(column + p, width - 1) * inner;
            for (ptrdiff_t i = 0; i < even; i += LANES) {
                Vector factor[PARTNERS];
                UNROLL for (int p = 0; p < PARTNERS; p++) factor[p] = load(b[p] + i);
                UNROLL for (int r = 0; r < ROWS; r++) {
                    const Vector other = load(a[r] + i);
                    UNROLL for (int p = 0; p < PARTNERS; p++) sum[r][p] += other * factor[p];
                }
            }
            if (even && rest) UNROLL for (int r = 0; r < ROWS; r++) {
                const Vector other = (Vector)((Mask)load(a[r] + inner - LANES) & uncounted);
                UNROLL for (int p = 0; p < PARTNERS; p++) sum[r][p] += other * load(b[p] + inner - LANES);
            }
            for (int r = 0; r < at_most(ROWS, rows - row); r++) for (int p = 0; p < at_most(PARTNERS, width - column); p++) {
                float value = total(sum[r][p]) + (bias ? bias[column + p] : 0);
                if (!even) for (ptrdiff_t i = 0; i < inner; i++) value += a[r][i] * b[p][i];
                out[(row + r) * width + column + p] = value;
            }
        }
    }
}

/* From scores (batch, classes) to the derivative by them of share × the sum of losses, in place; that sum. */
static float cross_entropy(
    ptrdiff_t batch, ptrdiff_t classes, float share, float *scores, const int64_t *labels
) {
    float loss = 0;
    for (ptrdiff_t b = 0; b < batch; b++, scores += classes) {
        float most = scores[0], sum = 0;
        for (ptrdiff_t c = 1; c < classes; c++) most = scores[c] > most ? scores[c] : most;
        loss -= scores[labels[b]] - most;
        for (ptrdiff_t c = 0; c < classes; c++) sum += scores[c] = expf(scores[c] - most);
        for (ptrdiff_t c = 0; c < classes; c++) scores[c] *= share / sum;
        scores[labels[b]] -= share;
        loss += logf(sum);
    }
    return loss * share;
}

/* A linear layer and what follows it: x where x > 0, slope · x otherwise. Where its tensors lie; bias −1: none. */
typedef struct {
    int64_t inputs, outputs, weight, bias;
    float slope;
} Layer;

/* With slope 0, what is below zero becomes zero even if it is infinite; NaN stays. */
static void activate(float *values, ptrdiff_t count, float slope) {
    if (slope == 0)
        for (ptrdiff_t i = 0; i < count; i++) values[i] = values[i] <= 0 ? 0 : values[i];
    else if (slope != 1)
        for (ptrdiff_t i = 0; i < count; i++) values[i] = values[i] <= 0 ? slope * values[i] : values[i];
}

static void back_through(float *delta, const float *values, ptrdiff_t count, float slope) {
    if (slope == 0)
        for (ptrdiff_t i = 0; i < count; i++) delta[i] = values[i] <= 0 ? 0 : delta[i];
    else if (slope != 1)
        for (ptrdiff_t i = 0; i < count; i++) delta[i] = values[i] <= 0 ? slope * delta[i] : delta[i];
}

/* Squares of (batch, width) numbers, those of each sample times its weight, if samples have weights. */
static void squares_of(
    ptrdiff_t batch, ptrdiff_t width, const float *values, const float *weights, float *restrict out
) {
    for (ptrdiff_t b = 0; b < batch; b++)
        for (ptrdiff_t i = b * width; i < (b + 1) * width; i++)
            out[i] = values[i] * values[i] * (weights ? weights[b] : 1);
}

/* The gradient by a linear layer: delta, the derivative by its outputs, times its inputs. */
static void layer_gradient(
    Layer layer, ptrdiff_t batch, const float *inputs, const float *delta, Target target, float *room
) {
    product(layer.outputs, layer.inputs, batch, delta, 1, layer.outputs, inputs, within(target, layer.weight), room);
    if (layer.bias < 0) return;
    memset(room, 0, layer.outputs * sizeof(float));
    for (ptrdiff_t b = 0; b < batch; b++)
        for (ptrdiff_t o = 0; o < layer.outputs; o++) room[o] += delta[b * layer.outputs + o];
    put_each(room, layer.outputs, within(target, layer.bias));
}

/* What goes into every layer, and last what comes out; returns the room that is left. */
static float *forward(
    const Layer *layers, int64_t count, ptrdiff_t batch, const float *w, float *passed[MOST_LAYERS], float *room
) {
    for (int64_t l = 0; l < count; l++) {
        const Layer layer = layers[l];
        const float *bias = layer.bias < 0 ? NULL : w + layer.bias;
        transposed_product(batch, layer.outputs, layer.inputs, passed[l], w + layer.weight, bias, room);
        activate(room, batch * layer.outputs, layer.slope);
        passed[l + 1] = room;
        room += batch * layer.outputs;
    }
    return room;
}

/* The gradient of a model's mean loss goes to the target; or, if samples have weights, the weighted sum of the squares
 * of each sample's gradient, which are δ² times x². Returns the loss.
 */
static float one_model(
    const Layer *layers, int64_t count, ptrdiff_t batch, float *x, const int64_t *y, const float *weights,
    const float *w, Target target, float *room
) {
    float *passed[MOST_LAYERS] = {x};
    room = forward(layers, count, batch, w, passed, room);
    float *delta = passed[count];
    const float share = weights ? 1 : 1.0f / (float)batch;
    const float loss = cross_entropy(batch, layers[count - 1].outputs, share, delta, y);
    for (int64_t l = count - 1; l >= 0; l--) {
        const Layer layer = layers[l];
        float *before = room;
        room += batch * layer.inputs;
        if (l > 0) { /* now, for the gradient may change the weights */
            const Target plain = {before, NULL, 1, 0};
            product(batch, layer.inputs, layer.outputs, delta, layer.outputs, 1, w + layer.weight, plain, room);
            back_through(before, passed[l], batch * layer.inputs, layers[l - 1].slope);
        }
        if (weights) {
            float *squared = room, *inputs = squared + batch * layer.outputs;
            squares_of(batch, layer.outputs, delta, weights, squared);
            squares_of(batch, layer.inputs, passed[l], NULL, inputs);
            layer_gradient(layer, batch, inputs, squared, target, inputs + batch * layer.inputs);
        } else {
            layer_gradient(layer, batch, passed[l], delta, target, room);
        }
        delta = before;
    }
    return loss;
}

static int32_t all_below(const int64_t *labels, int64_t count, int64_t classes) {
    for (int64_t i = 0; i < count; i++)
        if (labels[i] < 0 || labels[i] >= classes) return 0;
    return 1;
}

/* Gradients of some models (models, n), each on a mini-batch of its own: times a factor into `to`, or onto what is
 * there, their squares onto `squares`, if that is not NULL. 1 if a label is not among the classes.
 */
int32_t efl_chain_gradient(
    const Layer *layers, int64_t count, int64_t models, int64_t n, int64_t batch, float *x, const int64_t *y,
    const float *w, float *to, float factor, int32_t onto, float *squares, float *losses, float *scratch
) {
    if (!all_below(y, models * batch, layers[count - 1].outputs)) return 1;
    for (int64_t m = 0; m < models; m++) {
        float *own = x + m * batch * layers[0].inputs;
        const Target target = {to + m * n, squares ? squares + m * n : NULL, factor, onto};
        losses[m] = one_model(layers, count, batch, own, y + m * batch, NULL, w + m * n, target, scratch);
    }
    return 0;
}

/* The Fisher diagonals of some models: Σ_b weights[b] · (the gradient of sample b)². 1 if a label is not among the classes. */
int32_t efl_chain_fisher(
    const Layer *layers, int64_t count, int64_t models, int64_t n, int64_t batch, float *x, const int64_t *y,
    const float *weights, const float *w, float *to, float *scratch
) {
    if (!all_below(y, models * batch, layers[count - 1].outputs)) return 1;
    for (int64_t m = 0; m < models; m++) {
        float *own = x + m * batch * layers[0].inputs;
        const Target target = {to + m * n, NULL, 1, 0};
        one_model(layers, count, batch, own, y + m * batch, weights + m * batch, w + m * n, target, scratch);
    }
    return 0;
}

/* A step: w becomes keep · (w − η(g + drift)) + shift; keep and shift at the places named, or everywhere; an explicit
 * step pulls where it begins, everywhere. Strides lead from one model's numbers to the next one's, 0 where all have the
 * same. */
typedef struct {
    const float *drift, *keep, *shift;
    const int64_t *places;
    int64_t count, drift_stride, pull_stride;
    int32_t is_explicit;
} Step;

static void pull(const Step *step, int64_t model, float *restrict w) {
    if (!step->keep) return;
    const float *keep = step->keep + model * step->pull_stride, *shift = step->shift + model * step->pull_stride;
    if (step->places)
        for (ptrdiff_t i = 0; i < step->count; i++)
            w[step->places[i]] = keep[i] * w[step->places[i]] + shift[i];
    else
        for (ptrdiff_t i = 0; i < step->count; i++) w[i] = keep[i] * w[i] + shift[i];
}

/* A step whose gradient is needed by itself; squares may be NULL. */
static void step_along(
    const Step *step, int64_t model, ptrdiff_t n, const float *restrict gradient, float eta, float *restrict squares,
    float *restrict w
) {
    const float *restrict drift = step->drift ? step->drift + model * step->drift_stride : NULL;
    if (squares) for (ptrdiff_t i = 0; i < n; i++) squares[i] += gradient[i] * gradient[i];
    if (step->is_explicit) pull(step, model, w);
    if (drift) for (ptrdiff_t i = 0; i < n; i++) w[i] -= eta * (gradient[i] + drift[i]);
    else for (ptrdiff_t i = 0; i < n; i++) w[i] -= eta * gradient[i];
    if (!step->is_explicit) pull(step, model, w);
}

/* What one client after the other does: steps from `first` on, before `last`, and no more than `steps` says.
 * chosen and labels are (steps, models, batch). Squares of every so many gradients are added to others, if there are
 * some; losses are added up. If there is a `sum` (models, n), it takes up all gradients, and w stays as it is. Steps
 * that are explicit, or have a drift, need room for a `gradient` (n). 1 if a sample or a label does not exist.
 */
int32_t efl_chain_train(
    const Layer *layers, int64_t count, int64_t models, int64_t n, int64_t batch, const Source *source,
    const int64_t *chosen, const int64_t *labels, const int64_t *steps, int64_t first, int64_t last, float *w, float eta,
    const Step *step, float *squares, int64_t every, float *losses, float *sum, float *gradient, float *scratch
) {
    const int64_t a_step = models * batch, some = (last - first) * a_step;
    if (!efl_exist(source, chosen + first * a_step, some)) return 1;
    if (!all_below(labels + first * a_step, some, layers[count - 1].outputs)) return 1;
    float *x = scratch, *room = scratch + batch * layers[0].inputs;
    for (int64_t m = 0; m < models; m++)
        for (int64_t number = first; number < at_most(last, steps[m]); number++) {
            const int64_t begin = number * a_step + m * batch;
            float *own = w + m * n, *watched = squares && number % every == 0 ? squares + m * n : NULL;
            efl_fetch(source, chosen + begin, batch, x);
            if (number + 1 < last) efl_call_for(source, chosen + begin + a_step, batch);
            Target target = {own, watched, -eta, 1};
            if (sum) target = (Target){sum + m * n, NULL, 1, 1};
            else if (gradient) target = (Target){gradient, NULL, 1, 0};
            losses[m] += one_model(layers, count, batch, x, labels + begin, NULL, own, target, room);
            if (gradient) step_along(step, m, n, gradient, eta, watched, own);
            else if (!sum) pull(step, m, own);
        }
    return 0;
}

/* The class with the highest score for each of the samples chosen, batch by batch. 1 if a sample does not exist. */
int32_t efl_chain_answers(
    const Layer *layers, int64_t count, int64_t batch, const Source *source, const int64_t *chosen, int64_t samples,
    const float *w, int64_t *answers, float *scratch
) {
    const ptrdiff_t classes = layers[count - 1].outputs;
    if (!efl_exist(source, chosen, samples)) return 1;
    for (int64_t first = 0; first < samples; first += batch) {
        const ptrdiff_t some = at_most(batch, samples - first);
        float *passed[MOST_LAYERS] = {scratch};
        efl_fetch(source, chosen + first, some, scratch);
        forward(layers, count, some, w, passed, scratch + some * layers[0].inputs);
        for (ptrdiff_t b = 0; b < some; b++) {
            const float *scores = passed[count] + b * classes;
            ptrdiff_t best = 0;
            for (ptrdiff_t c = 1; c < classes; c++) best = scores[c] > scores[best] ? c : best;
            answers[first + b] = best;
        }
    }
    return 0;
}
