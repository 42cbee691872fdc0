/* The reader of messages of a federation, as the libraries of builds have it. */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_FEDERATED 1
#include "types.h"
#include "bytes.c"
#include "message.c"
