package main

import (
	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/router"
)

// control carries out what operators ask for.
type control struct {
	*router.Router // SetMode and Drain
	followers      *followers
	feed           *feed.Router
}

// Reset forgets what is known of an endpoint's cache, and follows its events anew, or has its node tell all blocks again.
func (c control) Reset(endpoint string) error {
	if err := c.Router.Reset(endpoint); err != nil {
		return err
	}
	c.followers.restart(endpoint)
	c.feed.Again(endpoint)
	return nil
}
