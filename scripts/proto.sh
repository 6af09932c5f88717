#!/usr/bin/env bash
# Generates the Go code of internal/feed/feedpb. Needs protoc (Debian: protobuf-compiler); its plugins are built from tools/go.mod.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
plugins=$(mktemp -d)
trap 'rm -rf "$plugins"' EXIT
for plugin in google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc; do
    go build -modfile=tools/go.mod -o "$plugins/" "$plugin"
done
protoc --plugin="$plugins/protoc-gen-go" --plugin="$plugins/protoc-gen-go-grpc" -I internal/feed/feedpb \
    --go_out=internal/feed/feedpb --go_opt=paths=source_relative --go-grpc_out=internal/feed/feedpb --go-grpc_opt=paths=source_relative feed.proto
