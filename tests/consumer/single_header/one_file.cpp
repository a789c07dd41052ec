// The whole library in the file that uses it.
#define THIMBLE_IMPLEMENTATION
#include <thimble.hpp>

#include "../program.h"

int main() { return consumer::run(); }
