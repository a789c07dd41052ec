#include <thimble/thimble.h>

#include "../program.h"

int main() { return consumer::run(); }
