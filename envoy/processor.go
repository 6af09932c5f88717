package envoy

import (
	"strings"

	mutationrulesv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	bufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	movev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// ownFilters are those of the decision, in their order.
func (b *builder) ownFilters() []*hcmv3.HttpFilter {
	var fs []*hcmv3.HttpFilter
	// In full duplex nothing is held: a filter that waited for the whole body would take away what the mode is for.
	if b.Body == BodyBuffered {
		fs = append(fs, b.filter(filterBuffer, &bufferv3.Buffer{MaxRequestBytes: wrapperspb.UInt32(uint32(b.MaxBody))}))
	}
	fs = append(fs, b.filter(filterExtProc, b.extProc()))
	if b.layout == LayoutComposite {
		fs = append(fs, b.filter(filterMove, b.moveTargets()))
	}
	return fs
}

// moveTargets takes the decision out of the headers, where engines would see it, into metadata of the request, which every attempt
// can read: an upstream filter that removed the headers would remove them for the retry too, and with them the second choice.
func (b *builder) moveTargets() *movev3.Config {
	c := &movev3.Config{}
	for _, h := range b.Headers.Targets() {
		c.RequestRules = append(c.RequestRules, &movev3.Config_Rule{
			Header:          h,
			OnHeaderPresent: &movev3.Config_KeyValuePair{MetadataNamespace: metadataTargets, Key: h},
			Remove:          true,
		})
	}
	return c
}

func (b *builder) extProc() *extprocv3.ExternalProcessor {
	var secrets []*matcherv3.StringMatcher
	for _, h := range secretHeaders() {
		secrets = append(secrets, exact(h))
	}
	p := &extprocv3.ExternalProcessor{
		GrpcService:      routerService(),
		FailureModeAllow: true,
		ProcessingMode:   b.processingMode(),
		MutationRules:    &mutationrulesv3.HeaderMutationRules{DisallowAll: yes()},
		ForwardRules:     &extprocv3.HeaderForwardingRules{DisallowedHeaders: &matcherv3.ListStringMatcher{Patterns: secrets}},
		MetadataOptions:  b.metadataOptions(),
	}
	if b.Body == BodyBuffered {
		p.MessageTimeout = duration(b.MessageTimeout) // Envoy has no such timer in full duplex
	}
	if hs := b.settable(); len(hs) > 0 {
		p.MutationRules.AllowExpression = &matcherv3.RegexMatcher{Regex: strings.Join(hs, "|")}
	}
	return p
}

// processingMode sends headers and body of the request, and of the answer nothing but the headers where they tell which endpoint gave it.
func (b *builder) processingMode() *extprocv3.ProcessingMode {
	m := &extprocv3.ProcessingMode{
		RequestHeaderMode:   extprocv3.ProcessingMode_SEND,
		RequestBodyMode:     extprocv3.ProcessingMode_BUFFERED,
		RequestTrailerMode:  extprocv3.ProcessingMode_SKIP,
		ResponseHeaderMode:  extprocv3.ProcessingMode_SKIP,
		ResponseBodyMode:    extprocv3.ProcessingMode_NONE,
		ResponseTrailerMode: extprocv3.ProcessingMode_SKIP,
	}
	if b.Body == BodyFullDuplex {
		m.RequestBodyMode = extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED
		m.RequestTrailerMode = extprocv3.ProcessingMode_SEND // Envoy takes the mode in no other way
	}
	if b.readsServed() {
		m.ResponseHeaderMode = extprocv3.ProcessingMode_SEND
	}
	return m
}

// metadataOptions let in what the router says of its decision, and with the endpoint picker protocol show it what the protocol names.
func (b *builder) metadataOptions() *extprocv3.MetadataOptions {
	o := &extprocv3.MetadataOptions{ReceivingNamespaces: namespaces(MetadataNamespace)}
	if b.Headers == HeadersGAIE {
		o.ForwardingNamespaces = namespaces(GatewaySubsetNamespace)
		if b.layout == LayoutOverride {
			o.ReceivingNamespaces = namespaces(MetadataNamespace, GatewayNamespace)
		}
		if b.readsServed() {
			o.ForwardingNamespaces = namespaces(GatewaySubsetNamespace, GatewayNamespace)
		}
	}
	return o
}

func namespaces(names ...string) *extprocv3.MetadataOptions_MetadataNamespaces {
	return &extprocv3.MetadataOptions_MetadataNamespaces{Untyped: names}
}
