"""Field numbers of the messages of a Pod.

Vectors: generated.proto of k8s.io/api core/v1. `outer.inner` is a field of an embedded message, which JSON shows inline.
"""

POD_NUMBERS = {
    "core.v1.Pod": "metadata1 spec2 status3",
    "core.v1.PodTemplate": "metadata1 template2",
    "core.v1.PodTemplateSpec": "metadata1 spec2",
    "core.v1.PodSpec": "volumes1 containers2 restartPolicy3 terminationGracePeriodSeconds4 "
    "activeDeadlineSeconds5 dnsPolicy6 nodeSelector7 serviceAccountName8 "
    "serviceAccount9 nodeName10 hostNetwork11 hostPID12 hostIPC13 securityContext14 "
    "imagePullSecrets15 hostname16 subdomain17 affinity18 schedulerName19 "
    "initContainers20 automountServiceAccountToken21 tolerations22 hostAliases23 "
    "priorityClassName24 priority25 dnsConfig26 shareProcessNamespace27 "
    "readinessGates28 runtimeClassName29 enableServiceLinks30 preemptionPolicy31 "
    "overhead32 topologySpreadConstraints33 ephemeralContainers34 setHostnameAsFQDN35 "
    "os36 hostUsers37 schedulingGates38 resourceClaims39 resources40 "
    "hostnameOverride41",
    "core.v1.PodStatus": "phase1 conditions2 message3 reason4 hostIP5 podIP6 startTime7 containerStatuses8 "
    "qosClass9 initContainerStatuses10 nominatedNodeName11 podIPs12 "
    "ephemeralContainerStatuses13 resize14 resourceClaimStatuses15 hostIPs16 "
    "observedGeneration17 extendedResourceClaimStatus18 allocatedResources19 "
    "resources20",
    "core.v1.Volume": "name1 hostPath2.1 emptyDir2.2 gcePersistentDisk2.3 awsElasticBlockStore2.4 gitRepo2.5 "
    "secret2.6 nfs2.7 iscsi2.8 glusterfs2.9 persistentVolumeClaim2.10 rbd2.11 "
    "flexVolume2.12 cinder2.13 cephfs2.14 flocker2.15 downwardAPI2.16 fc2.17 azureFile2.18 "
    "configMap2.19 vsphereVolume2.20 quobyte2.21 azureDisk2.22 photonPersistentDisk2.23 "
    "portworxVolume2.24 scaleIO2.25 projected2.26 storageos2.27 csi2.28 ephemeral2.29 "
    "image2.30",
    "core.v1.GCEPersistentDiskVolumeSource": "pdName1 fsType2 partition3 readOnly4",
    "core.v1.AWSElasticBlockStoreVolumeSource": "volumeID1 fsType2 partition3 readOnly4",
    "core.v1.GitRepoVolumeSource": "repository1 revision2 directory3",
    "core.v1.ISCSIVolumeSource": "targetPortal1 iqn2 lun3 iscsiInterface4 fsType5 readOnly6 portals7 chapAuthDiscovery8 "
    "secretRef10 chapAuthSession11 initiatorName12",
    "core.v1.GlusterfsVolumeSource": "endpoints1 path2 readOnly3",
    "core.v1.RBDVolumeSource": "monitors1 image2 fsType3 pool4 user5 keyring6 secretRef7 readOnly8",
    "core.v1.FlexVolumeSource": "driver1 fsType2 secretRef3 readOnly4 options5",
    "core.v1.CinderVolumeSource": "volumeID1 fsType2 readOnly3 secretRef4",
    "core.v1.CephFSVolumeSource": "monitors1 path2 user3 secretFile4 secretRef5 readOnly6",
    "core.v1.FlockerVolumeSource": "datasetName1 datasetUUID2",
    "core.v1.FCVolumeSource": "targetWWNs1 lun2 fsType3 readOnly4 wwids5",
    "core.v1.AzureFileVolumeSource": "secretName1 shareName2 readOnly3",
    "core.v1.VsphereVirtualDiskVolumeSource": "volumePath1 fsType2 storagePolicyName3 storagePolicyID4",
    "core.v1.QuobyteVolumeSource": "registry1 volume2 readOnly3 user4 group5 tenant6",
    "core.v1.AzureDiskVolumeSource": "diskName1 diskURI2 cachingMode3 fsType4 readOnly5 kind6",
    "core.v1.PhotonPersistentDiskVolumeSource": "pdID1 fsType2",
    "core.v1.PortworxVolumeSource": "volumeID1 fsType2 readOnly3",
    "core.v1.ScaleIOVolumeSource": "gateway1 system2 secretRef3 sslEnabled4 protectionDomain5 storagePool6 "
    "storageMode7 volumeName8 fsType9 readOnly10",
    "core.v1.StorageOSVolumeSource": "volumeName1 volumeNamespace2 fsType3 readOnly4 secretRef5",
    "core.v1.HostPathVolumeSource": "path1 type2",
    "core.v1.EmptyDirVolumeSource": "medium1 sizeLimit2",
    "core.v1.SecretVolumeSource": "secretName1 items2 defaultMode3 optional4",
    "core.v1.NFSVolumeSource": "server1 path2 readOnly3",
    "core.v1.PersistentVolumeClaimVolumeSource": "claimName1 readOnly2",
    "core.v1.DownwardAPIVolumeSource": "items1 defaultMode2",
    "core.v1.DownwardAPIVolumeFile": "path1 fieldRef2 resourceFieldRef3 mode4",
    "core.v1.ConfigMapVolumeSource": "items2 defaultMode3 optional4 name1.1",
    "core.v1.ProjectedVolumeSource": "sources1 defaultMode2",
    "core.v1.VolumeProjection": "secret1 downwardAPI2 configMap3 serviceAccountToken4 clusterTrustBundle5 "
    "podCertificate6",
    "core.v1.SecretProjection": "items2 optional4 name1.1",
    "core.v1.ConfigMapProjection": "items2 optional4 name1.1",
    "core.v1.ServiceAccountTokenProjection": "audience1 expirationSeconds2 path3",
    "core.v1.ClusterTrustBundleProjection": "name1 signerName2 labelSelector3 path4 optional5",
    "core.v1.PodCertificateProjection": "signerName1 keyType2 maxExpirationSeconds3 credentialBundlePath4 keyPath5 "
    "certificateChainPath6 userAnnotations7",
    "core.v1.CSIVolumeSource": "driver1 readOnly2 fsType3 volumeAttributes4 nodePublishSecretRef5",
    "core.v1.PersistentVolumeClaimSpec": "accessModes1 resources2 volumeName3 selector4 storageClassName5 volumeMode6 "
    "dataSource7 dataSourceRef8 volumeAttributesClassName9",
    "core.v1.KeyToPath": "key1 path2 mode3",
    "core.v1.ObjectFieldSelector": "apiVersion1 fieldPath2",
    "core.v1.ResourceFieldSelector": "containerName1 resource2 divisor3",
    "core.v1.Container": "name1 image2 command3 args4 workingDir5 ports6 env7 resources8 volumeMounts9 "
    "livenessProbe10 readinessProbe11 lifecycle12 terminationMessagePath13 "
    "imagePullPolicy14 securityContext15 stdin16 stdinOnce17 tty18 envFrom19 "
    "terminationMessagePolicy20 volumeDevices21 startupProbe22 resizePolicy23 "
    "restartPolicy24 restartPolicyRules25",
    "core.v1.EphemeralContainer": "targetContainerName2 name1.1 image1.2 command1.3 args1.4 workingDir1.5 ports1.6 "
    "env1.7 resources1.8 volumeMounts1.9 livenessProbe1.10 readinessProbe1.11 "
    "lifecycle1.12 terminationMessagePath1.13 imagePullPolicy1.14 securityContext1.15 "
    "stdin1.16 stdinOnce1.17 tty1.18 envFrom1.19 terminationMessagePolicy1.20 "
    "volumeDevices1.21 startupProbe1.22 resizePolicy1.23 restartPolicy1.24 "
    "restartPolicyRules1.25",
    "core.v1.ContainerPort": "name1 hostPort2 containerPort3 protocol4 hostIP5",
    "core.v1.EnvVar": "name1 value2 valueFrom3",
    "core.v1.EnvVarSource": "fieldRef1 resourceFieldRef2 configMapKeyRef3 secretKeyRef4 fileKeyRef5",
    "core.v1.EnvFromSource": "prefix1 configMapRef2 secretRef3",
    "core.v1.ConfigMapEnvSource": "optional2 name1.1",
    "core.v1.SecretEnvSource": "optional2 name1.1",
    "core.v1.ConfigMapKeySelector": "key2 optional3 name1.1",
    "core.v1.SecretKeySelector": "key2 optional3 name1.1",
    "core.v1.FileKeySelector": "volumeName1 path2 key3 optional4",
    "core.v1.ResourceRequirements": "limits1 requests2 claims3",
    "core.v1.VolumeMount": "name1 readOnly2 mountPath3 subPath4 mountPropagation5 subPathExpr6 recursiveReadOnly7",
    "core.v1.Probe": "initialDelaySeconds2 timeoutSeconds3 periodSeconds4 successThreshold5 "
    "failureThreshold6 terminationGracePeriodSeconds7 exec1.1 httpGet1.2 tcpSocket1.3 "
    "grpc1.4",
    "core.v1.LifecycleHandler": "exec1 httpGet2 tcpSocket3 sleep4",
    "core.v1.Lifecycle": "postStart1 preStop2 stopSignal3",
    "core.v1.HTTPGetAction": "path1 port2 host3 scheme4 httpHeaders5",
    "core.v1.TCPSocketAction": "port1 host2",
    "core.v1.GRPCAction": "port1 service2",
    "core.v1.SecurityContext": "capabilities1 privileged2 seLinuxOptions3 runAsUser4 runAsNonRoot5 "
    "readOnlyRootFilesystem6 allowPrivilegeEscalation7 runAsGroup8 procMount9 "
    "windowsOptions10 seccompProfile11 appArmorProfile12",
    "core.v1.PodSecurityContext": "seLinuxOptions1 runAsUser2 runAsNonRoot3 supplementalGroups4 fsGroup5 "
    "runAsGroup6 sysctls7 windowsOptions8 fsGroupChangePolicy9 seccompProfile10 "
    "appArmorProfile11 supplementalGroupsPolicy12 seLinuxChangePolicy13",
    "core.v1.WindowsSecurityContextOptions": "gmsaCredentialSpecName1 gmsaCredentialSpec2 runAsUserName3 hostProcess4",
    "core.v1.SELinuxOptions": "user1 role2 type3 level4",
    "core.v1.Affinity": "nodeAffinity1 podAffinity2 podAntiAffinity3",
    "core.v1.NodeSelectorRequirement": "key1 operator2 values3",
    "core.v1.PodAffinityTerm": "labelSelector1 namespaces2 topologyKey3 namespaceSelector4 matchLabelKeys5 "
    "mismatchLabelKeys6",
    "core.v1.Toleration": "key1 operator2 value3 effect4 tolerationSeconds5",
    "core.v1.TopologySpreadConstraint": "maxSkew1 topologyKey2 whenUnsatisfiable3 labelSelector4 minDomains5 "
    "nodeAffinityPolicy6 nodeTaintsPolicy7 matchLabelKeys8",
    "core.v1.PodResourceClaim": "name1 resourceClaimName3 resourceClaimTemplateName4",
    "core.v1.PodDNSConfig": "nameservers1 searches2 options3",
    "core.v1.PodCondition": "type1 status2 lastProbeTime3 lastTransitionTime4 reason5 message6 observedGeneration7",
    "core.v1.ContainerStatus": "name1 state2 lastState3 ready4 restartCount5 image6 imageID7 containerID8 "
    "started9 allocatedResources10 resources11 volumeMounts12 user13 "
    "allocatedResourcesStatus14 stopSignal15",
    "core.v1.ContainerState": "waiting1 running2 terminated3",
    "core.v1.ContainerStateTerminated": "exitCode1 signal2 reason3 message4 startedAt5 finishedAt6 containerID7",
}
