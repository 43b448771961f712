/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * fetch ROUNDS SET...: measures pmFetch(3) of each SET of metrics (names separated by commas) in turn, ROUNDS times.
 *
 * It connects to the pmcd of the environment. It prints a line for each fetch: number of the set, nanoseconds, values.
 */
#include <pcp/pmapi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SETS 8
#define METRICS 4096

static void
check(const char *what, int status)
{
    if (status < 0) {
	fprintf(stderr, "fetch: %s: %s\n", what, pmErrStr(status));
	exit(1);
    }
}

static long long
now(void)
{
    struct timespec	time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int
main(int argc, char **argv)
{
    static pmID		pmids[SETS][METRICS];
    int			counts[SETS];
    int			rounds, sets = argc - 2;

    if (sets < 1 || sets > SETS) {
	fprintf(stderr, "usage: fetch ROUNDS SET... (%d sets at most)\n", SETS);
	return 2;
    }
    rounds = atoi(argv[1]);
    check("pmNewContext", pmNewContext(PM_CONTEXT_HOST, "local:"));
    for (int set = 0; set < sets; set++) {
	const char	*names[METRICS];
	int		count = 0;

	for (char *name = strtok(argv[set + 2], ","); name != NULL; name = strtok(NULL, ",")) {
	    if (count == METRICS) {
		fprintf(stderr, "fetch: more than %d metrics\n", METRICS);
		return 2;
	    }
	    names[count++] = name;
	}
	check(names[0], pmLookupName(count, names, pmids[set]));
	counts[set] = count;
    }
    for (int round = 0; round < rounds; round++) {
	for (int set = 0; set < sets; set++) {
	    pmResult		*result;
	    long long		start = now(), took;
	    long		values = 0;

	    check("pmFetch", pmFetch(counts[set], pmids[set], &result));
	    took = now() - start;
	    for (int at = 0; at < result->numpmid; at++) {
		check("a value", result->vset[at]->numval);
		values += result->vset[at]->numval;
	    }
	    pmFreeResult(result);
	    printf("%d %lld %ld\n", set, took, values);
	}
    }
    return 0;
}
