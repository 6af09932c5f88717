// Package tlsfiles is the TLS side of a listener whose certificate, key and client authorities are files that others replace
// while it runs.
//
//	f, err := tlsfiles.New(tlsfiles.Options{Listener: "extproc", Key: "tls", CertFile: "tls.crt", KeyFile: "tls.key", Log: log})
//	// tls.key_file: "tls.key": … — at the start a bad file is an error that names the configuration's key
//	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(f.Config())))
//	err = f.Run(ctx) // takes over changed files until ctx ends
//
// Files are taken over together or not at all: a new certificate that does not parse, does not belong to the key or has expired is
// refused, said once, and what was in use stays. Connections are never closed by it: a handshake uses what is in use at its begin.
// For the same reason a connection outlives the removal of the authority that let it in.
//
// TLS 1.2 is the least. With client authorities a client must bring a certificate of one of them, whatever its names. Sessions are not
// taken up again, since a resumed one would pass by the authorities of today.
//
// Client and Pin are the side that connects: they read their files once, and at each handshake.
//
// # Concurrency
//
// Config may be used by any number of connections at a time, while Run and Reload replace what it serves. Run returns nil when its context
// ends, after its goroutines have ended.
package tlsfiles
