package envoy

import (
	"net/netip"
	"path"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// Names of the secrets, and of their files in Options.SecretsDir less the ending.
const (
	secretRouterCA   = "kvsteer_router_ca"
	secretRouterCert = "kvsteer_router_cert"
	secretEngineCA   = "kvsteer_engine_ca"
	secretEngineCert = "kvsteer_engine_cert"
)

// routerSocket is the transport socket to the routers, nil for clear text.
func (b *builder) routerSocket() *corev3.TransportSocket {
	return b.socket(b.RouterTLS, "h2", secretRouterCA, secretRouterCert)
}

// engineSocket is the transport socket to the engines, nil for clear text.
func (b *builder) engineSocket() *corev3.TransportSocket {
	alpn := "http/1.1"
	if b.EngineHTTP2 {
		alpn = "h2"
	}
	return b.socket(b.EngineTLS, alpn, secretEngineCA, secretEngineCert)
}

func (b *builder) socket(t TLS, alpn, ca, cert string) *corev3.TransportSocket {
	if !t.On() {
		return nil
	}
	common := &tlsv3.CommonTlsContext{AlpnProtocols: []string{alpn}}
	if b.SecretsDir == "" {
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: t.validation()}
		if t.CertFile != "" {
			common.TlsCertificates = []*tlsv3.TlsCertificate{t.certificate()}
		}
	} else {
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{ValidationContextSdsSecretConfig: b.secret(ca)}
		if t.CertFile != "" {
			common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{b.secret(cert)}
		}
	}
	upstream := &tlsv3.UpstreamTlsContext{CommonTlsContext: common}
	if _, err := netip.ParseAddr(t.ServerName); err != nil { // SNI holds names only
		upstream.Sni = t.ServerName
	}
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: b.pack(upstream)},
	}
}

// validation checks the chain and the name. Without the name any certificate of the authority would do.
func (t TLS) validation() *tlsv3.CertificateValidationContext {
	kind := tlsv3.SubjectAltNameMatcher_DNS
	if _, err := netip.ParseAddr(t.ServerName); err == nil {
		kind = tlsv3.SubjectAltNameMatcher_IP_ADDRESS
	}
	return &tlsv3.CertificateValidationContext{
		TrustedCa:                 filename(t.CAFile),
		MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{{SanType: kind, Matcher: exact(t.ServerName)}},
	}
}

func (t TLS) certificate() *tlsv3.TlsCertificate {
	return &tlsv3.TlsCertificate{CertificateChain: filename(t.CertFile), PrivateKey: filename(t.KeyFile)}
}

// secret names a secret in a file of its own. Envoy watches files that a secret of this kind names, and no others.
func (b *builder) secret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{
			PathConfigSource: &corev3.PathConfigSource{Path: path.Join(b.SecretsDir, name+".yaml")},
		},
	}}
}

// secrets reports whether the configuration refers to files in Options.SecretsDir.
func (b *builder) secrets() bool { return b.SecretsDir != "" && (b.RouterTLS.On() || b.EngineTLS.On()) }

func filename(s string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: s}}
}
