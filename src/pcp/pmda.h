/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What bindgen reads. pmda.h does not include pmapi.h by itself. */
#include <pcp/pmapi.h>
#include <pcp/pmda.h>

/* The result that fetch and store callbacks carry: pmResult until PCP 6, pmdaResult (a macro) from PCP 7 on. */
#ifdef pmdaResult
typedef pmdaResult nixl_pmda_result;
#else
typedef pmResult nixl_pmda_result;
#endif
