/* SPDX-License-Identifier: GPL-2.0-or-later */

/* A library with the functions of libnixl that are probed. Their arguments are those of NIXL 1.5. They do nothing. */

#define EXPORTED __attribute__((visibility("default"), noinline))

/* std::string of libstdc++ */
struct string {
    const char *text;
    unsigned long length;
    char rest[16];
};

static int result = 1; /* NIXL_IN_PROG */

EXPORTED void _ZN12nixlXferReqHC1ERKNSt7__cxx1112basic_stringIcE(void *handle, const struct string *remote)
{
    __asm__ volatile("" : : "r"(handle), "r"(remote) : "memory");
}

EXPORTED int _ZNK9nixlAgent11postXferReqEP12nixlXferReqH(void *agent, void *handle)
{
    __asm__ volatile("" : : "r"(agent), "r"(handle) : "memory");
    return result;
}

EXPORTED int _ZNK9nixlAgent14releaseXferReqEP12nixlXferReqH(void *agent, void *handle)
{
    __asm__ volatile("" : : "r"(agent), "r"(handle) : "memory");
    return 0;
}

/* Makes a handle of a transfer with a remote agent. */
EXPORTED void make(unsigned long handle, const char *text, unsigned long length)
{
    struct string remote = {text, length, {0}};
    _ZN12nixlXferReqHC1ERKNSt7__cxx1112basic_stringIcE((void *)handle, &remote);
}

/* Makes a handle with a name at any address. */
EXPORTED void make_at(unsigned long handle, unsigned long name)
{
    _ZN12nixlXferReqHC1ERKNSt7__cxx1112basic_stringIcE((void *)handle, (const struct string *)name);
}

/* Posts the transfer of a handle, which returns a status. */
EXPORTED void post(unsigned long handle, int status)
{
    result = status;
    _ZNK9nixlAgent11postXferReqEP12nixlXferReqH(0, (void *)handle);
}

EXPORTED void release(unsigned long handle)
{
    _ZNK9nixlAgent14releaseXferReqEP12nixlXferReqH(0, (void *)handle);
}

/* Makes, posts and releases so many handles, all of one address. */
EXPORTED void transfer(const char *text, unsigned long length, unsigned long count)
{
    for (unsigned long done = 0; done < count; done++) {
        make(4096, text, length);
        post(4096, 1);
        release(4096);
    }
}

/* Makes and posts so many handles with different addresses, from one on. */
EXPORTED void hold(unsigned long first, const char *text, unsigned long length, unsigned long count)
{
    for (unsigned long handle = first; handle < first + count; handle++) {
        make(handle, text, length);
        post(handle, 1);
    }
}
