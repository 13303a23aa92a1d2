module generator

go 1.25

tool github.com/open-telemetry/opentelemetry-collector-contrib/cmd/telemetrygen

require github.com/open-telemetry/opentelemetry-collector-contrib/cmd/telemetrygen v0.161.0
