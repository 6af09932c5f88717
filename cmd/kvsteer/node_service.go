package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/kvsteer/kvsteer/internal/config"
)

type nodeService struct{}

func newNodeService(string, *config.Node, *slog.Logger) (*nodeService, error) {
	return &nodeService{}, nil
}

func (*nodeService) run(context.Context) error { return errors.New("not yet") }
