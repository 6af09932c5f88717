package main

import "github.com/kvsteer/kvsteer/internal/router"

// control carries out what operators ask for.
type control struct {
	*router.Router // SetMode and Drain
	followers      *followers
}

// Reset forgets what is known of an endpoint's cache, and follows its events anew.
func (c control) Reset(endpoint string) error {
	if err := c.Router.Reset(endpoint); err != nil {
		return err
	}
	c.followers.restart(endpoint)
	return nil
}
