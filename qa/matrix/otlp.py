#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""qa/matrix/otlp.py: reads requests for metrics in the JSON of OTLP/HTTP, one a line, as a strict receiver does.

It prints a line for each point, or why the request is rejected. The reader is the protobuf library with OpenTelemetry's messages
(python3-opentelemetry-proto): it takes no name and no value that the protocol does not have.
"""
import datetime
import sys
import time

from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

UTC = datetime.timezone.utc


def shown(seconds):
    """Returns a time, or `now` for one of the last minute."""
    if 0 <= time.time() - seconds < 60:
        return "now"
    return datetime.datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def points(metric):
    """Returns a line for each point of a metric: name, kind, temporality, instance, value with its unit, and time."""
    kind = metric.WhichOneof("data")
    data = getattr(metric, kind)
    words = [metric.name, kind]
    if kind == "sum":
        words.append(AggregationTemporality.Name(data.aggregation_temporality).removeprefix("AGGREGATION_TEMPORALITY_"))
    for point in data.data_points:
        names = [attribute.value.string_value for attribute in point.attributes if attribute.key == "instname"]
        value = getattr(point, point.WhichOneof("value"))
        yield " ".join(words + names + [str(value), metric.unit, shown(point.time_unix_nano // 10**9)])


def lines(text):
    """Returns the lines to print for a request."""
    try:
        request = json_format.Parse(text, ExportMetricsServiceRequest())
    except json_format.ParseError as error:
        # The reason is behind the names of the fields that contain it, and before the path to it.
        reason = str(error).splitlines()[0].split(" field: ")[-1]
        return ["rejected: " + reason.split(" at ")[0].replace("opentelemetry.proto.metrics.v1.", "")]
    scopes = [scope for resource in request.resource_metrics for scope in resource.scope_metrics]
    return [line for scope in scopes for metric in scope.metrics for line in points(metric)]


def main():
    """Reads standard input."""
    for text in sys.stdin:
        if text.strip():
            print("\n".join(lines(text)))


main()
