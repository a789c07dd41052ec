// A file that only uses the library, which is in implementation.cpp.
#include <thimble.hpp>

#include "../program.h"

int main() { return consumer::run(); }
