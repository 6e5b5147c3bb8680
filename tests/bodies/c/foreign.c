/* A library in C: state for each thread, a callback, a lock that its owner may take again. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>

static __thread long current;

void foreign_set(long value) { current = value; }

long foreign_get(void) { return current; }

static void (*callback)(void *);

void foreign_register(void (*function)(void *)) { callback = function; }

long foreign_fire(long value, void *argument) {
    long before = current;
    current = value;
    callback(argument);
    value = current;
    current = before;
    return value;
}

static pthread_mutex_t recursive;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&recursive, &attributes);
}

int foreign_lock(void) {
    pthread_once(&once, make);
    return pthread_mutex_lock(&recursive);
}

int foreign_unlock(void) { return pthread_mutex_unlock(&recursive); }
