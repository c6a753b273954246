#include <stdint.h>

/* How many of the levels beyond the baseline this processor and its system have; cmake/CMakeLists.txt compiles for
 * exactly these instructions. */
int32_t efl_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi")
        && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    const int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 ? 1 + (avx512 != 0) : 0;
#else
    return 0;
#endif
}
