/* The parts of a program for a board that do not know the model: printing, and the end. */
#ifndef FIRMWARE_H
#define FIRMWARE_H

#ifdef __cplusplus
extern "C" {
#endif

void say(const char *text);
void say_bits(float value);
void stop(int failed); /* does not return */
void train(void);      /* what the program does once the board is ready */

#ifdef __cplusplus
}
#endif
#endif
