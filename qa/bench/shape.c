/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * shape -d DOMAIN -l LOG AGENTS: a typical C PMDA with libpcp_pmda and the metrics of pmdanixl, as a reference: the 20 metrics of
 * PCP's own PMDA for NIXL, 64-bit counters, for AGENTS instances. pmdaCache(3) has the instances with pointers to their values. The
 * values are constant, so that only the cost of an answer is measured.
 */
#include <pcp/pmapi.h>
#include <pcp/pmda.h>
#include <stdio.h>
#include <stdlib.h>

#define CLUSTERS 4
#define ITEMS 5
#define METRICS (CLUSTERS * ITEMS)

typedef struct {
    __uint64_t		values[METRICS];
} agent_t;

static pmdaIndom	indoms[1];
static pmdaMetric	metrics[METRICS];

static int
fetch_callback(pmdaMetric *metric, unsigned int inst, pmAtomValue *atom)
{
    unsigned int	cluster = pmID_cluster(metric->m_desc.pmid);
    unsigned int	item = pmID_item(metric->m_desc.pmid);
    agent_t		*agent;
    int			sts;

    if (cluster >= CLUSTERS || item >= ITEMS)
	return PM_ERR_PMID;
    sts = pmdaCacheLookup(indoms[0].it_indom, inst, NULL, (void **)&agent);
    if (sts < 0)
	return sts;
    if (sts != PMDA_CACHE_ACTIVE)
	return PM_ERR_INST;
    atom->ull = agent->values[cluster * ITEMS + item];
    return PMDA_FETCH_STATIC;
}

int
main(int argc, char **argv)
{
    pmdaInterface	dispatch;
    pmdaOptions		opts = { .short_options = "D:d:l:?" };
    char		name[32];
    agent_t		*agents;
    int			count;

    pmSetProgname(argv[0]);
    pmdaDaemon(&dispatch, PMDA_INTERFACE_7, "shape", 253, "shape.log", NULL);
    pmdaGetOptions(argc, argv, &opts, &dispatch);
    if (opts.errors || argc != opts.optind + 1) {
	fprintf(stderr, "usage: shape -d DOMAIN -l LOG AGENTS\n");
	return 1;
    }
    count = atoi(argv[opts.optind]);
    pmdaOpenLog(&dispatch);
    for (int at = 0; at < METRICS; at++) {
	pmDesc	*desc = &metrics[at].m_desc;

	desc->pmid = PMDA_PMID(at / ITEMS, at % ITEMS);
	desc->type = PM_TYPE_U64;
	desc->indom = 0;
	desc->sem = PM_SEM_COUNTER;
    }
    pmdaSetFetchCallBack(&dispatch, fetch_callback);
    pmdaInit(&dispatch, indoms, 1, metrics, METRICS);
    if ((agents = calloc(count, sizeof(*agents))) == NULL)
	return 1;
    for (int at = 0; at < count; at++) {
	for (int value = 0; value < METRICS; value++)
	    agents[at].values[value] = (__uint64_t)at << 20 | value;
	pmsprintf(name, sizeof(name), "agent-%d", at);
	pmdaCacheStore(indoms[0].it_indom, PMDA_CACHE_ADD, name, &agents[at]);
    }
    pmdaConnect(&dispatch);
    pmdaMain(&dispatch);
    return 0;
}
