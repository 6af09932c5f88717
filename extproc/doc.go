// Package extproc is the Envoy external-processing server of the router: it holds the conversation with Envoy's ext_proc filter,
// hands each request to a [Decider], and turns the decision into request headers and dynamic metadata.
//
//	s, err := extproc.New(extproc.Options{Decider: router, Log: log, Metrics: extproc.NewMetrics(reg)})
//	…
//	err = s.Run(ctx, listener) // serves until ctx ends, then drains
//
// # Conversation
//
// The filter's protocol_config, sent with the first message of a stream, names its body mode. BUFFERED is the mode that routes.
// Each row is one stream; ▶ is a message from Envoy, ◀ a reply, "nil" the handler's return, which ends the stream with status OK
// and lets the HTTP request go on.
//
//	request                    conversation
//	no body                    ▶ headers eos=true     ◀ headers reply: decision                  nil
//	body, empty or chunked     ▶ headers eos=false    ◀ headers reply: empty
//	                           ▶ body eos=true        ◀ body reply: decision                     nil
//	body with trailers         ▶ headers eos=false    ◀ headers reply: empty
//	                           ▶ body eos=false       ◀ body reply: decision                     nil
//	trailers without body      ▶ headers eos=false    ◀ headers reply: empty
//	                           ▶ trailers             ◀ trailers reply: empty                    nil
//	body of a request that     ▶ headers eos=false    ◀ headers reply: decision not to decide    nil
//	  a Passer passes
//	body beyond a byte cap,    ▶ headers eos=false    ◀ headers reply: decision without the body nil
//	  known from its length
//	body beyond a byte cap     ▶ headers eos=false    ◀ headers reply: empty
//	                           ▶ body                 ◀ body reply: decision without the body    nil
//	aborted by the client      … end of stream at any point                                      nil
//
// The first body message is answered at once whatever its end_of_stream says: with trailers it stays false and nothing follows.
// The stream is ended by us right after the decision: Envoy would keep it open as long as the engine's answer, where it counts
// against circuit breakers and where the death of the router could cut the answer.
//
// A decision reply sets x-target-endpoint and x-target-endpoint-2 (or removes what is not decided, so that a value sent by a client
// never survives), clears the route cache, and describes the decision under the metadata namespace kvsteer. Addresses come from the
// decision alone and are emitted only in the form ip:port.
//
// FULL_DUPLEX_STREAMED is routed too. Envoy wants the whole body back there, sends nothing to an engine before the headers reply, and has no timer:
//
//	no body                    ▶ headers eos=true     ◀ headers reply: decision                  nil
//	body                       ▶ headers eos=false
//	                           ▶ body …
//	                           ▶ body eos=true        ◀ headers reply: decision
//	                                                  ◀ body replies: the body, eos on the last  nil
//	body with trailers         ▶ headers eos=false
//	                           ▶ body …
//	                           ▶ trailers             ◀ headers reply: decision
//	                                                  ◀ body replies: the body
//	                                                  ◀ trailers reply: empty                    nil
//	body of a type that is     ▶ headers eos=false    ◀ headers reply: decision without the body
//	  not read, too long, or   ▶ body …               ◀ body replies: each part as it comes      nil
//	  of a Passer's request
//	body beyond a byte cap,    ▶ headers eos=false
//	  or not here within       ▶ body …               ◀ headers reply: decision without the body
//	  BodyWait, or in a drain                         ◀ body replies: what has come
//	                           ▶ body …               ◀ body replies: each part as it comes      nil
//
// No piece is longer than 64 KiB, and the pieces together are the body, whatever the Decider does. Where responses come in this mode as well, they
// are sent back until their end.
//
// Every other mode passes the request on unrouted and intact, and logs one line: GRPC has each message echoed as a StreamedBodyResponse, STREAMED and
// BUFFERED_PARTIAL have it acknowledged, NONE ends after the headers. The headers reply removes both of our headers. A filter in observability
// mode reads no replies: its streams are ended without one. A message that does not belong to the conversation is answered by the empty reply of its
// kind and ends the stream.
//
// # Gateways
//
// With [Gateway] the decision is told as the endpoint-picker protocol of the Gateway API inference extension has it: the request header
// x-gateway-destination-endpoint and the same key of the dynamic metadata envoy.lb, in the place of our own headers. The metadata that a request comes
// with may name the subset to pick from, that of a response who has served it. A request without an endpoint is answered with 503, an overload with 429.
//
// No stream ever ends with an error of ours: a failure, a panic included, ends it with nil, so that Envoy goes on in either
// setting of failure_mode_allow.
//
// # Access log
//
// With a [Completer], the same listener takes Envoy's gRPC access log (AccessLogService). Each HTTP record becomes a [router.Completion]; of its
// fields only those are read that a Completion has, so that no header or path is ever made into a string. The service answers nothing until
// Envoy ends the stream, and a shutdown ends it at once. A stream with a message that is above 1 MiB or not readable is ended; Envoy
// opens another one with its next record. What is lost meanwhile is lost: nothing waits for records.
//
// # Memory
//
// An account bounds the bytes that streams hold, headers and bodies together, by MaxTotal. A stream enters its headers, then the
// length of its body: an ordinary one (up to 64 KiB, or MaxBody/32 if that is less) when it is received, since gRPC's flow control lets
// that much in before it is asked for; a large one before it is received, as content-length declares it, else MaxBody/8, settled on
// receipt. What finds no room is decided without its body: a large one at once, so that it never comes to us. Large bodies
// together take at most half of MaxTotal (or MaxBody, if that is more): long, slow or missing uploads then cannot keep ordinary prompts
// from being read.
//
// Outside the account are: gRPC's two copies of a message in the moment of its decoding; up to 64 KiB of a body before it is received;
// what a body of undeclared length is longer than its estimate, between receipt and refusal, at most MaxBody each for at most
// 4·MaxTotal/MaxBody streams, which Envoy has buffered before; and what the Decider makes of a body. A message above MaxBody + 1 MiB is
// refused by gRPC from its length prefix, and Envoy falls back as for an error.
//
// # Concurrency
//
// One goroutine per stream, and a second one for a body that is large or of undeclared length, so that the wait for it can end: after
// BodyWait, and in a drain. So it is for the wait for a response. The Decider is called from many goroutines at once, at most once per stream, with a context that ends with the stream and
// after Budget; the request it is given must not be used after it returns.
//
// Health checks answer NOT_SERVING until Options.Ready is closed, while streams are served as ever: whether an Envoy sends any meanwhile is its
// own affair. [Server.Apply] changes limits and times while streams are open.
//
// An access log stream has two goroutines for as long as it lives; there are at most 4,096 such streams. The Completer is called from many
// goroutines at once, and in the order of one stream's records.
//
// Run may be called once at a time. When its ctx ends, health checks answer NOT_SERVING for Notice while everything is still served;
// then no stream is accepted and the open ones have Drain to end; then streams that wait for a response, or for a large or undeclared body, end with
// nil, or are decided without it and go on where the body must be sent back; then connections are closed. Run returns when all handlers and goroutines have ended.
package extproc
