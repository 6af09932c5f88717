package feed

import (
	"fmt"
	"strings"

	"github.com/kvsteer/kvsteer/subscriber"
)

// Bounds of what either side takes from the other. A message beyond them ends the stream: a peer that speaks this protocol keeps to them.
const (
	maxReceived = 1 << 20 // bytes of a message to a node
	maxSent     = 4 << 20 // bytes of a message to a router

	maxName     = 256     // bytes of a name: pool, engine, release, problem, cause, file
	maxServed   = 1 << 10 // bytes of a served name: model, adapter; longer ones are in no request that is read
	maxEndpoint = 128     // bytes of an endpoint
	maxPath     = 4 << 10
	maxInstance = 64
	maxID       = 128 // bytes of a decision's id

	maxReplicas = 1 << 12 // of a node
	maxModels   = 1 << 10 // of a replica
	maxAdapters = 1 << 12
	maxSources  = subscriber.MaxRanks
	maxProblems = 64
	maxFiles    = 64
	maxPeers    = 1 << 12
	maxCharges  = 1 << 12 // made, and as many released, in one message

	maxKeys = 8 << 10 // of one message: 64 KiB of them
)

// short says what of a message is too long, nil for nothing.
func short(what, text string, limit int) error {
	if len(text) > limit {
		return fmt.Errorf("%s of %d bytes, at most %d are taken", what, len(text), limit)
	}
	return nil
}

// few is short for lists.
func few(what string, n, limit int) error {
	if n > limit {
		return fmt.Errorf("%d %s, at most %d are taken", n, what, limit)
	}
	return nil
}

// valid is a text as it can be sent: whole characters of UTF-8, at most limit bytes.
func valid(text string, limit int) string {
	text = strings.ToValidUTF8(text, "�")
	return strings.ToValidUTF8(text[:min(len(text), limit)], "") // a character may have been cut
}
