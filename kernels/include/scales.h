// One bfloat16 scale a vector, for any finite input: never 0 for a vector that isn't zero, never infinite.
// Rows are taken to a largest element near 1 by a power of two, so that squares neither overflow nor vanish and nothing
// is rounded. Magnitudes are compared as integers: right for values that a GPU would flush to 0, and for NaN.

constant constexpr uint INFINITE = 0x7f800000u;  // the magnitude of infinity; NaN lies above

// |v|'s bits, which ascend with |v|.
inline uint magnitude(float v) { return as_type<uint>(v) & 0x7fffffffu; }

// The exponent of a largest magnitude, kept where 2^-exponent is a normal number too.
inline uint exponent_of(uint largest) { return metal::min(metal::max(largest >> 23, 1u), 253u); }

// 2^exponent and 2^-exponent, for what `exponent_of` gives.
inline float power_up(uint exponent) { return as_type<float>(exponent << 23); }
inline float power_down(uint exponent) { return as_type<float>((254u - exponent) << 23); }

// A scale as stored, bfloat16 bits rounded to the nearest, of a row with this largest magnitude.
inline uint stored_scale(float scale, uint largest) {
    uint bits = as_type<uint>(scale);
    if (largest >= INFINITE || magnitude(scale) > INFINITE) {
        return 0x7fc0u;  // NaN
    }
    bits = (bits >> 31) != 0u ? 0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return metal::min(metal::max(bits, largest == 0u ? 0u : 1u), 0x7f7fu);
}

// What stored bits stand for.
inline float read_scale(uint bits) { return as_type<float>(bits << 16); }
