#define NIXL 39
