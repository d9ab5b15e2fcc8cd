// Metal's address spaces for CUDA, where they are no part of a pointer's type.
//
// Declarations of threadgroup memory have been rewritten as __shared__ before. Must be the last of these headers: CUDA's
// own use the words otherwise.
#define METAL_FUNC inline
#define device
#define constant
#define thread
#define threadgroup
