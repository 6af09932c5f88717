// Package feedpb is the generated code of feed.proto, the conversation between nodes and routers: see package feed. make proto makes it anew.
package feedpb
