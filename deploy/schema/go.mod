module github.com/kvsteer/kvsteer/deploy/schema

go 1.26

require (
	github.com/compose-spec/compose-go/v2 v2.16.2 // indirect
	github.com/grafana/grafana-foundation-sdk/go v0.0.22 // indirect
)
