// Runs @kubernetes/client-node against the cluster of KUBECONFIG, and prints what it saw as one JSON object.
// Usage: node client.mjs <namespace>

import { CoreV1Api, KubeConfig, KubernetesObjectApi, PatchStrategy, Watch, makeInformer, setHeaderOptions } from '@kubernetes/client-node'

const namespace = process.argv[2]
const config = new KubeConfig()
config.loadFromDefault()
const core = config.makeApiClient(CoreV1Api)
const saw = {}

async function refused(work) {
  try {
    await work()
  } catch (error) {
    return error.code
  }
  return 0
}

await core.createNamespace({ body: { metadata: { name: namespace } } })
const made = await core.createNamespacedConfigMap({ namespace, body: { metadata: { name: 'one' }, data: { color: 'red' } } })
saw.created = made.data
saw.again = await refused(() => core.createNamespacedConfigMap({ namespace, body: { metadata: { name: 'one' } } }))
saw.managers = made.metadata.managedFields.map((entry) => entry.operation)

made.data = { color: 'blue' }
saw.replaced = (await core.replaceNamespacedConfigMap({ name: 'one', namespace, body: made })).data
saw.stale = await refused(() => core.replaceNamespacedConfigMap({ name: 'one', namespace, body: made }))
const merge = setHeaderOptions('Content-Type', PatchStrategy.MergePatch)
saw.patched = (await core.patchNamespacedConfigMap({ name: 'one', namespace, body: { data: { size: 'l' } } }, merge)).data
saw.listed = (await core.listNamespacedConfigMap({ namespace, fieldSelector: 'metadata.name=one' })).items.map((item) => item.data)

const objects = KubernetesObjectApi.makeApiClient(config)
const binding = {
  apiVersion: 'rbac.authorization.k8s.io/v1',
  kind: 'RoleBinding',
  metadata: { name: 'one', namespace },
  roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'view' },
  subjects: [{ kind: 'User', apiGroup: 'rbac.authorization.k8s.io', name: 'jane' }],
}
saw.binding = (await objects.create(binding)).roleRef.name

// a watch from the list on: the deletion arrives
const { resourceVersion } = (await core.listNamespacedConfigMap({ namespace })).metadata
const deleted = new Promise((resolve, reject) => {
  new Watch(config).watch(
    `/api/v1/namespaces/${namespace}/configmaps`,
    { resourceVersion },
    (phase, object) => phase === 'DELETED' && resolve(object.metadata.name),
    (error) => error && reject(error),
  )
})
const informer = makeInformer(config, `/api/v1/namespaces/${namespace}/secrets`, () => core.listNamespacedSecret({ namespace }))
const informed = new Promise((resolve) => informer.on('add', (object) => resolve(object.metadata.name)))
await informer.start()
await core.createNamespacedSecret({ namespace, body: { metadata: { name: 'two' }, stringData: { a: 'b' } } })
saw.informed = await informed
await core.deleteNamespacedConfigMap({ name: 'one', namespace })
saw.deleted = await deleted
saw.gone = await refused(() => core.readNamespacedConfigMap({ name: 'one', namespace }))
const request = { spec: { audiences: [], expirationSeconds: 600 } }
saw.token = (await core.createNamespacedServiceAccountToken({ name: 'default', namespace, body: request })).status.token.split('.').length
console.log(JSON.stringify(saw))
process.exit(0) // watches are open
