// The one file of a program that holds the library.
#define THIMBLE_IMPLEMENTATION
#include <thimble.hpp>
