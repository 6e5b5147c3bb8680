/* A plug-in with state for each thread. */
static __thread long current;

void plugin_set(long value) { current = value; }

long plugin_get(void) { return current; }

long *plugin_address(void) { return &current; }

long plugin_call(long value, void (*callback)(void *), void *argument) {
    current = value;
    callback(argument);
    return current;
}
