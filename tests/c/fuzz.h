/* The functions that a reader gives to the loop of fuzz.c. */

#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>

/* Read bytes and look at all that was read; the error code, at most 9, or 0.  A reader that breaks
 * its promises ends the process by abort(). */
int fuzz_take(const unsigned char *data, size_t size);

/* Correct a checksum, so that the bytes it guards are read. */
void fuzz_mend(unsigned char *data, size_t size);

/* Words that such files have, NULL after the last. */
extern const char *const fuzz_words[];

#endif
