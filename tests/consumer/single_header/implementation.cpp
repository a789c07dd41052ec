// The only file of a program that defines the library.
#define THIMBLE_IMPLEMENTATION
#include <thimble.hpp>
